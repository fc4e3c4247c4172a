"""Numbered effects: everything a process does that another one can see, counted where third-party code does it.

An effect is a put or delete in the object store, the creation, closing or removal of a file through pyiceberg's file
system, the same and each batch of a file of Lance's writer, or a commit in the catalog or of a Lance dataset; each counts
twice, before and after. Product code has no hooks for this: whatever new
object or file it writes joins the count by itself. All processes of a run share one ledger, whose line number is the
effect's number; the process that writes the fatal line stops there: killed for good, or suspended like a process on a
machine that hangs.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.abc
import importlib.util
import os
import re
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from protocol.crash.reads import QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from protocol.crash.reads import Reads

#: What a process is told by its environment, where nobody can hand it an ``Effects``: a Python worker of Spark.
LEDGER, FATAL, DRIVER = "EFFECTS_LEDGER", "EFFECTS_FATAL", "EFFECTS_DRIVER"

#: Behind the thread in a line of a ledger: nothing was read since the last effect.
BLIND = "-"

#: To stop at each effect.
EVERY = -1

_STEM = re.compile(r"ckpt-[0-9a-f]+-g(\d+)-s(\w+?)-[0-9a-f]+\.\w+")


class Counter(Protocol):
    """Whoever counts effects."""

    def happen(self, name: str) -> None: ...

    def around(self, name: str, call: Callable[[], Any]) -> Any: ...


@dataclass(frozen=True)
class Effects:
    """The effects of one run.

    :param ledger: file that all processes of the run append to.
    :param fatal: the effect at which the process stops: its number; or, where the order is not the same in each run, its name
        and how many of that name there must have been, as in ``after close manifest#3``; empty or 0 for never, ``EVERY`` for each.
    :param how: ``SIGKILL`` or ``SIGSTOP``.
    :param driver: process that is killed too, 0 for none.
    :param reads: what the process reads; None if nobody asks which effects have no read between them.
    """

    ledger: Path
    fatal: int | str = 0
    how: signal.Signals = signal.SIGKILL
    driver: int = 0
    reads: Reads | None = None

    @classmethod
    def of_environment(cls) -> Effects:
        return cls(Path(os.environ[LEDGER]), os.environ.get(FATAL, ""), driver=int(os.environ.get(DRIVER, "0")))

    def happen(self, name: str) -> None:
        """Count one effect; does not return if it is the fatal one."""
        looked = "" if self.reads is None or self.reads.any() else BLIND
        with self.ledger.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            before = [line.split(" ", 1)[1].rstrip() for line in file]
            file.write(f"{threading.get_native_id()}{looked} {name}\n")
        if self._is_fatal(before, name):
            if self.driver:
                os.kill(self.driver, self.how)
            # To this thread: a stop of the process may reach another thread first, and this one would go on meanwhile.
            signal.pthread_kill(threading.get_ident(), self.how)
        if self.reads is not None:
            self.reads.forget()

    def _is_fatal(self, before: list[str], name: str) -> bool:
        if isinstance(self.fatal, int):
            return self.fatal in {EVERY, len(before) + 1}
        start, _, count = self.fatal.partition("#")
        return bool(start) and name.startswith(start) and sum(one.startswith(start) for one in before) + 1 == int(count)

    def around(self, name: str, call: Callable[[], Any]) -> Any:
        self.happen(f"before {name}")
        result = call()
        self.happen(f"after {name}")
        return result


def names_in(ledger: Path) -> list[str]:
    """Names of the effects that happened, in their order."""
    return [line.split(" ", 1)[1] for line in ledger.read_text().splitlines()] if ledger.exists() else []


def stops_in(ledger: Path) -> list[tuple[int, str]]:
    """Number and name of the effects at which a suspended run is in a place of its own.

    Behind an effect and before the next, without a read in between, is one place: see ``reads``. Not if several threads have
    effects: each of them is somewhere when one is stopped.
    """
    lines = [line.split(" ", 1) for line in ledger.read_text().splitlines()]
    threads = {who.removesuffix(BLIND) for who, _ in lines}
    stops = [(number, name) for number, (_, name) in enumerate(lines, 1)]
    if len(threads) > 1:
        return stops
    following = [*(who.endswith(BLIND) and name.startswith("before") for who, name in lines[1:]), False]
    return [stop for stop, is_same in zip(stops, following, strict=True) if not (is_same and stop[1].startswith("after"))]


def install(effects: Counter, reads: Reads | None = None) -> None:
    """Count from now on in this process, also in modules that are imported later.

    :param reads: counts what this process reads; see ``Effects``.
    """
    for module in QUESTIONS if reads is not None else ():
        if module in sys.modules:
            reads.count_questions(sys.modules[module])
    waiting = dict(_PATCHES)
    for name in list(waiting):
        if name in sys.modules:
            waiting.pop(name)(sys.modules[name], effects)
    sys.meta_path.insert(0, _Hook(waiting, effects))


class _Hook(importlib.abc.MetaPathFinder):
    """Patches a module right after its import."""

    def __init__(self, waiting: dict[str, Callable[[ModuleType, Counter], None]], effects: Counter) -> None:
        self._waiting = waiting
        self._effects = effects

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        patch = self._waiting.pop(fullname, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(fullname)
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module, self._effects)

        spec.loader.exec_module = exec_module
        return spec


def _patch_store(obstore: ModuleType, effects: Counter) -> None:
    for name in ("put", "delete", "copy", "rename"):
        original = getattr(obstore, name)

        @functools.wraps(original)
        def counted(store: Any, path: Any, *args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            return effects.around(f"{_name} {_object(path)}", lambda: _original(store, path, *args, **kwargs))

        setattr(obstore, name, counted)
    open_writer = obstore.open_writer

    def counted_open(store: Any, path: str, **settings: Any) -> _CountedUpload:
        return _CountedUpload(effects.around(f"create {_file(path)}", lambda: open_writer(store, path, **settings)), path, effects)

    obstore.open_writer = counted_open


def _patch_files(pyarrow_io: ModuleType, effects: Counter) -> None:
    create, delete = pyarrow_io.PyArrowFile.create, pyarrow_io.PyArrowFileIO.delete

    def counted_create(self: Any, overwrite: bool = False) -> _CountedFile:
        stream = effects.around(f"create {_file(self.location)}", lambda: create(self, overwrite))
        return _CountedFile(stream, self.location, effects)

    def counted_delete(self: Any, location: Any) -> None:
        path = location if isinstance(location, str) else location.location
        effects.around(f"remove {_file(path)}", lambda: delete(self, location))

    pyarrow_io.PyArrowFile.create, pyarrow_io.PyArrowFileIO.delete = counted_create, counted_delete


def _patch_catalog(sql: ModuleType, effects: Counter) -> None:
    commit_table = sql.SqlCatalog.commit_table

    def counted(self: Any, table: Any, requirements: Any, updates: Any) -> Any:
        return effects.around("commit of the table", lambda: commit_table(self, table, requirements, updates))

    sql.SqlCatalog.commit_table = counted


def _patch_lance_files(file: ModuleType, effects: Counter) -> None:
    open_writer = file.LanceFileSession.open_writer

    def counted(self: Any, path: str, **settings: Any) -> Any:
        if "/ckpt-" not in path:
            return open_writer(self, path, **settings)  # A trial in memory, which nobody else sees.
        writer = effects.around(f"create {_file(path)}", lambda: open_writer(self, path, **settings))
        return _CountedWriter(writer, path, effects)

    file.LanceFileSession.open_writer = counted


def _patch_lance_commits(dataset: ModuleType, effects: Counter) -> None:
    commit = dataset.LanceDataset.commit

    def counted(*args: Any, **settings: Any) -> Any:
        if str(getattr(args[0], "uri", args[0])).startswith("memory://"):
            return commit(*args, **settings)  # Asked how it numbers columns, in memory, where nobody else sees it.
        operation = getattr(args[1], "operation", args[1])
        name = "note in the table" if type(operation).__name__ == "UpdateConfig" else "commit of the table"
        return effects.around(name, lambda: commit(*args, **settings))

    dataset.LanceDataset.commit = staticmethod(counted)
    add_columns = dataset.LanceDataset.add_columns

    def counted_growth(self: Any, *args: Any, **settings: Any) -> Any:
        if self.uri.startswith("memory://"):
            return add_columns(self, *args, **settings)
        return effects.around("evolution of the table", lambda: add_columns(self, *args, **settings))

    dataset.LanceDataset.add_columns = counted_growth


#: Where effects happen, by the module that makes them happen.
_PATCHES: dict[str, Callable[[ModuleType, Counter], None]] = {
    "obstore": _patch_store,
    "pyiceberg.io.pyarrow": _patch_files,
    "pyiceberg.catalog.sql": _patch_catalog,
    "lance.file": _patch_lance_files,
    "lance.dataset": _patch_lance_commits,
}


class _CountedFile:
    """An output stream whose closing counts."""

    def __init__(self, stream: Any, location: str, effects: Counter) -> None:
        self._stream = stream
        self._location = location
        self._effects = effects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._stream.closed:
            self._effects.around(f"close {_file(self._location)}", self._stream.close)


class _CountedUpload:
    """An upload to a store whose end counts."""

    def __init__(self, upload: Any, path: str, effects: Counter) -> None:
        self._upload = upload
        self._path = path
        self._effects = effects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._upload, name)

    def __enter__(self) -> Self:
        self._upload.__enter__()
        return self

    def __exit__(self, *args: object) -> Any:
        return self._effects.around(f"close {_file(self._path)}", lambda: self._upload.__exit__(*args))


class _CountedWriter:
    """A writer of Lance whose batches and closing count."""

    def __init__(self, writer: Any, path: str, effects: Counter) -> None:
        self._writer = writer
        self._path = path
        self._effects = effects

    def write_batch(self, batch: Any) -> None:
        self._effects.around(f"write {_file(self._path)}", lambda: self._writer.write_batch(batch))

    def close(self) -> Any:
        return self._effects.around(f"close {_file(self._path)}", self._writer.close)


def _object(path: Any) -> str:
    """Name of a store object without its key: ``g1/staged/000001.json``."""
    if not isinstance(path, str):
        return ", ".join(map(_object, path))
    if path.endswith(".lance"):
        return _file(path)
    folders = path.split("/")[1:]
    if path.startswith("_checkpoint_keys/"):
        # Begins with what stands for the moment at which the generation was begun.
        return f"memory of a key, {folders[-1].partition('.')[2]}"
    if "rejected" in folders:
        # Behind the split is the task that has written it.
        return "/".join([*folders[:-1], f"{folders[-1].partition('-')[0]}.parquet"])
    return "/".join([*folders[:-1], "<id>.json"]) if "attempts" in folders else "/".join(folders)


def _file(location: str) -> str:
    """What a file is, and of which split: names hold random ids, which would hide that two runs do the same."""
    name = location.rsplit("/", 1)[-1]
    kind = (
        "metadata" if name.endswith(".metadata.json")
        else "manifest list" if name.startswith("snap-")
        else "manifest" if name.endswith(".avro")
        else "data file" if name.endswith((".parquet", ".lance"))
        else name
    )  # fmt: skip
    match = _STEM.match(name)
    return f"{kind} of g{match[1]}/{match[2]}" if match else kind

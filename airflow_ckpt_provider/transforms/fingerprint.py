"""The fingerprint of a user's function: a digest of what it says and of all that it uses, the same in every process.

It is what tells a retry that the code is not what the splits of the first try were written with (I6): so it covers too much
rather than too little, and what has no stable form is refused instead of being passed over. Not covered is what the code reads
when it runs: files, environment variables, other services.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.transforms.arrays import array_form
from airflow_ckpt_provider.transforms.code import CodeForms
from airflow_ckpt_provider.transforms.origin import Origins, package_of
from airflow_ckpt_provider.transforms.source import Sources
from airflow_ckpt_provider.transforms.values import (
    LEAVES,
    PLAIN,
    Held,
    UnstableError,
    container,
    ignored,
    known,
    leaf,
    object_form,
    plain,
)

if TYPE_CHECKING:
    from airflow_ckpt_provider.transforms.values import Form

#: Looks at all that a function uses, until a look finds nothing that would change the next one.
_LOOKS = 20


def fingerprint_of(function: Any, name: str, instead: str) -> str:  # noqa: ANN401 - any callable
    """SHA-256 over a function and what it uses, in hex.

    :param name: what to call the function.
    :param instead: the parameter that takes the fingerprint's place, for messages.
    :raises InvalidInputError: if it holds something that has no stable form, with the way to it.
    """
    origins, sources = Origins(package_of(function)), Sources()
    bulk: dict[int, tuple[object, bytes]] = {}
    settled: frozenset[tuple[int, str]] = frozenset()
    names: frozenset[str] = frozenset()
    for _ in range(_LOOKS):
        code = CodeForms(origins, sources, settled, names)
        look = _Look(code, bulk, _folder(function))
        digest = look.digest(name, function)
        if code.assigned <= settled and code.names <= names:
            break
        settled, names = settled | code.assigned, names | code.names
    if look.problem is not None:
        way, why = look.problem
        raise InvalidInputError(
            f"{' → '.join(way)} is {why}. It has no form that is the same in every process, so that a retry could not tell whether "
            f'{name} is still what the first try ran. Create it inside the function; or pass {instead}="1", and change that '
            "whenever the function, or something that it uses, changes."
        )
    return digest.hex()


def _folder(function: Any) -> str:  # noqa: ANN401 - any callable
    """Folder of the file that the function was read from: a DAG bundle lies at another place on each machine."""
    while hasattr(function, "func"):
        function = function.func
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    file = code.co_filename if code is not None else ""
    return os.path.join(os.path.dirname(os.path.abspath(file)), "") if file and not file.startswith("<") else "\0"


class _Frame:
    """A value that is being looked at."""

    __slots__ = ("answer", "form", "label", "total", "value")

    def __init__(self, label: str, value: object, form: Form) -> None:
        self.label = label
        self.value = value
        self.form: Any = form
        self.total = hashlib.sha256()
        #: Digest of what the form has asked for last.
        self.answer: bytes | None = None

    def step(self) -> bytes | memoryview | Held:
        """The next part of the form."""
        answer, self.answer = self.answer, None
        return next(self.form) if answer is None else self.form.send(answer)  # type: ignore[no-any-return]

    def take(self, digest: bytes, *, alone: bool) -> None:
        """A part is done; one that was looked at alone is put where it belongs by the form itself."""
        if alone:
            self.answer = digest
        else:
            self.add(digest)

    def add(self, part: bytes | memoryview) -> None:
        size = part.nbytes if isinstance(part, memoryview) else len(part)
        self.total.update(size.to_bytes(8, "big"))
        self.total.update(part)


class _Look:
    """One look at a function and all that it uses, without recursion: data may be nested as deep as it likes.

    :param bulk: digests of plain values and arrays, with those, for the next look.
    :param folder: paths below it count from there.
    """

    def __init__(self, code: CodeForms, bulk: dict[int, tuple[object, bytes]], folder: str) -> None:
        self._code = code
        self._bulk = bulk
        self._folder = folder
        self._done: dict[int, bytes] = {}
        self._open: dict[int, int] = {}
        #: What was looked at, so that no id is given to something else meanwhile.
        self._alive: list[object] = []
        #: The way to the first value without a stable form, and what it is.
        self.problem: tuple[list[str], str] | None = None

    def digest(self, label: str, value: object, way: list[str] | None = None) -> bytes:
        """Digest of a value and of everything in it.

        :param way: labels of what it was found in.
        """
        way = way or []
        frames: list[_Frame] = []
        done = self._begin(label, value, frames, way)
        while frames:
            frame = frames[-1]
            try:
                part = frame.step()
            except StopIteration:
                done = self._close(frames)
                if frames:
                    frames[-1].take(done, alone=False)
                continue
            except UnstableError as error:
                self._note([*way, *(open_frame.label for open_frame in frames)], error)
                frame.form = iter(())
                continue
            if not isinstance(part, Held):
                frame.add(part)
            elif part.alone:
                frame.take(self._alone(part, [*way, *(open_frame.label for open_frame in frames)]), alone=True)
            else:
                ready = self._begin(part.label, part.value, frames, way)
                if ready is not None:
                    frame.take(ready, alone=False)
        if done is None:
            raise AssertionError("The last frame has a digest.")
        return done

    def _alone(self, part: Held, way: list[str]) -> bytes:
        """Digest of a value as if nothing had been looked at before it, so that it does not depend on the order."""
        if type(part.value) in LEAVES:
            return self._leaf(part.value)
        done, self._done = self._done, {}
        try:
            return self.digest(part.label, part.value, way)
        finally:
            self._done = done

    def _begin(self, label: str, value: object, frames: list[_Frame], way: list[str]) -> bytes | None:  # noqa: PLR0911 - cases
        """The digest of a value; None if it is being looked at from now on."""
        if type(value) in LEAVES:
            return self._leaf(value)
        if ignored(value):
            return b"ignored"
        key = id(value)
        if key in self._done:
            return self._done[key]
        if key in self._open:
            return b"holds itself %d" % (len(self._open) - self._open[key])
        ready = self._bulk.get(key)
        if ready is not None:
            return ready[1]
        whole = plain(value) if type(value) in PLAIN else None
        if whole is not None:
            self._bulk[key] = (value, hashlib.sha256(b"plain" + whole).digest())
            return self._bulk[key][1]
        self._alive.append(value)
        try:
            form = self._form(value)
        except UnstableError as error:
            self._note([*way, *(open_frame.label for open_frame in frames), label], error)
            return b"unstable"
        self._open[key] = len(self._open)
        frames.append(_Frame(label, value, form))
        return None

    def _form(self, value: Any) -> Form:  # noqa: ANN401 - any value
        for find in (container, self._code.form, known, array_form):
            form = find(value)
            if form is not None:
                return form
        return object_form(value, lambda name: self._code.keeps(value, name))

    def _close(self, frames: list[_Frame]) -> bytes:
        frame = frames.pop()
        key, done = id(frame.value), frame.total.digest()
        del self._open[key]
        self._done[key] = done
        if _is_bulk(frame.value):
            self._bulk[key] = (frame.value, done)
        return done

    def _leaf(self, value: object) -> bytes:
        if isinstance(value, str) and f"{value}/".startswith(self._folder):
            return b"here" + leaf(os.path.relpath(value, self._folder))
        return leaf(value)

    def _note(self, way: list[str], error: UnstableError) -> None:
        self.problem = self.problem or (way, str(error))


def _is_bulk(value: Any) -> bool:  # noqa: ANN401 - any value
    """Whether a value has buffers, and nothing of Python's in them."""
    of_library = type(value).__module__.partition(".")[0] in {"numpy", "pyarrow"} and hasattr(value, "nbytes")
    return of_library and not getattr(getattr(value, "dtype", None), "hasobject", False)

"""Code that a function uses: what changes what it does changes its fingerprint, and nothing else does."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import subprocess
import sys
import textwrap

import pytest

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources.transform import Transform


@pytest.fixture
def module(tmp_path):
    """Writes modules into a folder of its own and imports the first one, as a process does that has not seen it before."""
    numbers = itertools.count()

    def load(files, first="dag"):
        folder = tmp_path / f"v{next(numbers)}"
        for name, text in files.items():
            path = folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        done = subprocess.run(
            [sys.executable, "-c", PRINT, first],
            env=os.environ | {"PYTHONPATH": f"{folder}:{':'.join(sys.path)}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return load


PRINT = """
import importlib, sys
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources.transform import Transform
function = importlib.import_module(sys.argv[1]).clean
try:
    print(Transform(function).fingerprint)
except InvalidInputError as error:
    print(error)
"""

PLAIN = """
    import functools, logging, threading
    from dataclasses import dataclass

    LIMIT = 1
    NAMES = {"a": ["b"]}
    UNUSED = 1
    log = logging.getLogger("one")
    lock = threading.Lock()
    cache = {}
    made = None

    @dataclass
    class Rule:
        least: int = 1

        def holds(self, batch):
            return len(batch) >= self.least + self.margin()

        def margin(self):
            return 0

    class Base:
        step = 1

        def __call__(self, batch):
            return self.cut(batch)

    class Cutter(Base):
        width = 2

        def cut(self, batch):
            return super().cut(batch) if batch is None else batch.slice(self.width)

        @property
        def half(self):
            return self.width / 2

    RULE = Rule(2)

    @functools.lru_cache(maxsize=10)
    def looked_up(key):
        return NAMES[key]

    def helper(batch, most=10):
        return batch.slice(LIMIT)[:most]

    def clean(batch: object) -> list:
        "Cleans."
        global made
        with lock:
            log.info("%s", batch)
            cache["x"] = 1
        if made is None:
            made = Cutter()
        def inner(row: int):
            "Inner."
            first: int = 1
            return row + first
        return RULE.holds(batch), helper(batch), looked_up("a"), made(batch), [inner(row) for row in batch]
"""

SAME = {
    "a comment": ("return batch.slice(LIMIT)[:most]", "return batch.slice(LIMIT)[:most]  # the first rows"),
    "layout": ("def helper(batch, most=10):", "def helper(\n        batch,\n        most=10,\n    ):"),
    "a docstring": ('"Cleans."', '"Cleans everything."'),
    "no docstring": ('"Cleans."', ""),
    "the docstring of a function inside": ('"Inner."', '"Inside."'),
    "annotations": ("def clean(batch: object) -> list:", "def clean(batch: list) -> 'object':"),
    "no annotations": ("def clean(batch: object) -> list:", "def clean(batch):"),
    "the annotation of a variable": ("first: int = 1", "first = 1"),
    "what is not used": ("UNUSED = 1", "UNUSED = 2"),
    "a logger": ('logging.getLogger("one")', 'logging.getLogger("two")'),
    "a lock": ("lock = threading.Lock()", "lock = threading.RLock()"),
    "lines above": ("import functools, logging, threading", "import json\n\n\n    import functools, logging, threading"),
    "a memory that the code fills": ("cache = {}", "cache = {'y': 2}"),
    "a name that the code assigns": ("made = None\n\n    @dataclass", "made = 7\n\n    @dataclass"),
}

OTHER = {
    "a constant that a function of the file uses": ("LIMIT = 1", "LIMIT = 2"),
    "a mapping behind a cache": ('NAMES = {"a": ["b"]}', 'NAMES = {"a": ["c"]}'),
    "a function that it calls": ("[:most]", "[1:most]"),
    "a default of a function that it calls": ("most=10", "most=11"),
    "a function inside": ("return row + first", "return row - first"),
    "what is cached": ("return NAMES[key]", "return NAMES[key] * 2"),
    "a value of a dataclass": ("RULE = Rule(2)", "RULE = Rule(3)"),
    "a default of a dataclass": ("least: int = 1", "least: int = 2"),
    "a field of a dataclass": ("least: int = 1", "least: int = 1\n        most: int = 5"),
    "a method": ("return len(batch) >= self.least", "return len(batch) > self.least"),
    "a method that a method calls": ("return 0", "return 1"),
    "a class attribute": ("width = 2", "width = 3"),
    "a class attribute of a base": ("step = 1", "step = 2"),
    "a method of a base": ("return self.cut(batch)", "return self.cut(batch) or None"),
    "a property": ("self.width / 2", "self.width // 2"),
}


@pytest.mark.parametrize("what", SAME)
def test_the_fingerprint_stays_when_only_this_changes(module, what):
    was, now = SAME[what]
    assert was in PLAIN
    assert module({"dag": PLAIN}) == module({"dag": PLAIN.replace(was, now, 1)})


@pytest.mark.parametrize("what", OTHER)
def test_the_fingerprint_changes_with_this(module, what):
    was, now = OTHER[what]
    assert was in PLAIN
    one, other = module({"dag": PLAIN}), module({"dag": PLAIN.replace(was, now, 1)})
    assert len(one) == len(other) == 64
    assert one != other


#: A DAG folder with modules beside the DAG file, in several ways to use them.
FOLDER = {
    "dag": """
        import config
        import rules.first as first
        from rules import second
        from rules.third import check

        def clean(batch):
            from rules.fourth import LEAST
            import rules.fifth
            import rules.sixth as sixth
            from rules import seventh
            return config.LIMIT, first.inner(batch), second.VALUE, check(batch), LEAST, rules.fifth.MOST, sixth.STEP, seventh.go()
    """,
    "config": "LIMIT = 1\nOTHER = open(__file__)\n",
    "rules/__init__": "",
    "rules/first": "from .deep import DEPTH\ndef inner(batch):\n    return batch, DEPTH\n",
    "rules/deep": "DEPTH = 1\n",
    "rules/second": "VALUE = 1\nunused = 1\n",
    "rules/third": "from rules import second\ndef check(batch):\n    from . import eighth\n    return batch, second, eighth.NEAR\n",
    "rules/fourth": "LEAST = 1\n",
    "rules/fifth": "MOST = 1\n",
    "rules/sixth": "STEP = 1\n",
    "rules/seventh": "def go():\n    return 1\n",
    "rules/eighth": "NEAR = 1\n",
}


@pytest.mark.parametrize(
    "name", ["config", "rules/deep", "rules/second", "rules/fourth", "rules/fifth", "rules/sixth", "rules/seventh", "rules/eighth"]
)
def test_the_fingerprint_follows_what_is_used_of_the_modules_beside_a_dag_file(module, name):
    changed = FOLDER[name].replace(" 1", " 2", 1)
    assert changed != FOLDER[name]
    assert module(FOLDER) == module(FOLDER)
    assert module(FOLDER) != module(FOLDER | {name: changed})


def test_what_is_not_used_of_the_modules_beside_a_dag_file_does_not_count(module):
    others = {"config": "import os\nLIMIT = 1\nOTHER = 2\n", "rules/second": "VALUE = 1\nunused = 2\n"}
    assert module(FOLDER) == module(FOLDER | others)


ANYWHERE = """
    import importlib.util, runpy, sys, os
    from airflow_ckpt_provider.sources.transform import Transform
    sys.path.insert(0, os.path.dirname(sys.argv[2]))
    if sys.argv[1] == "__main__":
        function = runpy.run_path(sys.argv[2], run_name="__main__")["clean"]
    else:
        spec = importlib.util.spec_from_file_location(sys.argv[1], sys.argv[2])
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        function = module.clean
    print(Transform(function).fingerprint)
"""

EVERYTHING = """
    from collections import namedtuple
    from enum import Enum
    from pathlib import Path
    from typing import NamedTuple
    import os
    import msgspec

    HERE = Path(__file__).parent
    FOLDER = os.path.dirname(os.path.abspath(__file__))
    class Kind(Enum):
        A = "a"
        B = "b"
    class Row(NamedTuple):
        kind: Kind
        n: int = 1
    class Note(msgspec.Struct):
        text: str = "x"
    Pair = namedtuple("Pair", "a b", defaults=[7])
    KINDS = {Kind.A, Kind.B, "c", 4, frozenset({"x", "y"}), Row(Kind.A)}
    BY_KIND = {Kind.A: {"x", "y"}, Kind.B: set()}
    RULES = HERE / "rules.json"
    def clean(batch):
        return batch, KINDS, BY_KIND, RULES, FOLDER, HERE, Pair(1), Note, [word for word in {"p", "q"} if word in {"r", "s", batch}]
"""


def test_the_fingerprint_is_the_same_in_other_processes_under_other_names_and_at_other_places(tmp_path):
    found = set()
    for number, (name, seed) in enumerate(
        [("dag", "1"), ("__main__", "2"), ("unusual_prefix_4711_dag", "3"), ("unusual_prefix_4712_dag", "4")]
    ):
        folder = tmp_path / f"bundle-{number}" / ("x" * number) / "dags"
        folder.mkdir(parents=True)
        (folder / "dag.py").write_text(
            textwrap.dedent(EVERYTHING + textwrap.indent(textwrap.dedent(PLAIN), "    ").replace("def clean", "def more"))
        )
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(ANYWHERE), name, str(folder / "dag.py")],
            env=os.environ | {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout.strip())
    assert len(found) == 1
    assert len(found.pop()) == 64


def test_two_lambdas_on_one_line_are_two_functions():
    one, other, same = (lambda batch: batch.slice(1)), (lambda batch: batch.slice(2)), (lambda batch: batch.slice(1))
    inside, as_inside = (lambda: lambda batch: batch.slice(3)), (lambda: lambda batch: batch.slice(4))
    assert Transform(one).fingerprint == Transform(same).fingerprint
    assert len({Transform(function).fingerprint for function in (one, other, inside, as_inside, inside(), as_inside())}) == 6


def test_code_without_source_counts_by_what_it_does():
    def made(text):
        names = {}
        exec(text, names)
        return Transform(names["clean"]).fingerprint

    one = made("def clean(batch):\n    'Text.'\n    return batch.slice(1)\n")
    assert one == made("def clean(batch):\n    'Other.'\n    return batch.slice(1)\n")
    assert one != made("def clean(batch):\n    return batch.slice(2)\n")
    assert made("X = 1\ndef clean(batch):\n    return X\n") != made("X = 2\ndef clean(batch):\n    return X\n")


def test_a_file_that_was_edited_after_its_import_is_not_taken_for_what_was_imported(tmp_path):
    path = tmp_path / "dag.py"
    names: list[dict] = [{}, {}]
    for number, step in enumerate("12"):
        path.write_text(f"def clean(batch):\n    return batch.slice({step})\n")
        exec(compile(path.read_text(), str(path), "exec"), names[number])
    first, second = (Transform(one["clean"]).fingerprint for one in names)
    assert first != second


def test_a_file_is_parsed_once_in_a_process_and_again_when_it_says_something_else(tmp_path, monkeypatch):
    path, texts, parse = tmp_path / "dag.py", [], ast.parse
    monkeypatch.setattr(ast, "parse", lambda text, *more: texts.append(text) or parse(text, *more))

    def imported(step):
        names: dict = {}
        path.write_text(f"def clean(batch):\n    return batch.slice({step})\n")
        exec(compile(path.read_text(), str(path), "exec"), names)
        return Transform(names["clean"]).fingerprint

    one, same, other, back = (imported(step) for step in (1, 1, 21, 1))
    assert one == same == back != other
    assert len(texts) == len(set(texts)) > 1


# -- what the code makes for itself ---------------------------------------------------------------------------------------


class Lazy:
    """Loads what it needs when it is first called."""

    def __init__(self, name):
        self.name = name
        self.model = None
        self.seen = 0
        self.answers = {}

    def load(self):
        if self.model is None:
            self.model = [self.name]

    def __call__(self, batch):
        self.load()
        self.seen += 1
        self.answers[self.seen] = batch
        return self.model


class Configured:
    def __init__(self):
        self.limit = 1

    def most(self, limit):
        self.limit = limit
        return self

    def __call__(self, batch):
        return batch.slice(self.limit)


def test_what_a_callable_object_remembers_of_its_calls_does_not_count():
    used, unused = Lazy("a"), Lazy("a")
    used("batch")
    assert Transform(used).fingerprint == Transform(unused).fingerprint
    assert Transform(used).fingerprint != Transform(Lazy("b")).fingerprint
    assert Transform(used.__call__).fingerprint == Transform(unused.__call__).fingerprint


def test_what_a_setter_set_before_the_stage_counts():
    assert Transform(Configured().most(2)).fingerprint != Transform(Configured().most(3)).fingerprint
    assert Transform(Configured().most(2)).fingerprint == Transform(Configured().most(2)).fingerprint


def test_a_count_in_a_closure_does_not_count():
    def counting(first):
        calls, answers = 0, {}

        def clean(batch):
            nonlocal calls
            calls += 1
            answers[calls] = batch
            return batch.slice(first)

        return clean

    used = counting([1])
    used("batch".__class__.__mro__ and _Sliced())
    assert Transform(used).fingerprint == Transform(counting([1])).fingerprint
    assert Transform(used).fingerprint != Transform(counting([2])).fingerprint


class _Sliced:
    def slice(self, first):
        return first


# -- what has no stable form ------------------------------------------------------------------------------------------------


class Model:
    def __init__(self, session):
        self.session = session


MODEL: Model = Model(None)


def with_model(batch):
    return MODEL.session, batch


def test_an_open_handle_is_refused_with_the_way_to_it_and_what_to_do(monkeypatch, tmp_path):
    with (tmp_path / "open").open("w") as handle:
        monkeypatch.setattr(MODEL, "session", [{"log": handle}])
        with pytest.raises(InvalidInputError) as refused:
            Transform(with_model).fingerprint  # noqa: B018 - asked for
    message = str(refused.value)
    assert message.startswith("with_model → MODEL → session → [0] → log is a _io.TextIOWrapper")
    assert 'Create it inside the function; or pass transform_version="1"' in message


@pytest.mark.parametrize("what", ["connection", "generator", "process", "weak reference", "c object"])
def test_an_object_without_readable_state_is_refused(what):
    import select
    import sqlite3
    import weakref

    made = {
        "connection": lambda: sqlite3.connect(":memory:"),
        "generator": lambda: (n for n in "a"),
        "process": lambda: iter([1]),
        "weak reference": lambda: weakref.ref(MODEL),
        "c object": select.epoll,
    }[what]()

    def clean(batch):
        return made

    try:
        with pytest.raises(InvalidInputError, match=r"clean → made is a .*transform_version"):
            Transform(clean).fingerprint  # noqa: B018 - asked for
    finally:
        getattr(made, "close", lambda: None)()


def test_functions_that_a_library_makes_of_an_object_of_its_own_count_by_their_names():
    from random import randint, random

    def clean(batch):
        return random(), randint(1, 2), batch

    one = Transform(clean).fingerprint
    random()
    assert Transform(clean).fingerprint == one


@functools.singledispatch
def described(value):
    return f"{value}{SUFFIX}"


@described.register
def _(value: int):
    return f"number {value}{ENDING}"


SUFFIX = ENDING = "."


def with_dispatch(batch):
    return described(batch)


@pytest.mark.parametrize("name", ["SUFFIX", "ENDING"])
def test_functions_behind_a_decorator_of_a_library_are_followed(monkeypatch, name):
    one = Transform(with_dispatch).fingerprint
    described("a")
    assert Transform(with_dispatch).fingerprint == one
    monkeypatch.setattr(f"{__name__}.{name}", "!")
    assert Transform(with_dispatch).fingerprint != one


def test_a_function_that_was_made_for_spark_counts_by_what_it_does():
    from pyspark.sql.functions import udf
    from pyspark.sql.types import IntegerType, LongType

    def made(step, kind=IntegerType):
        add = udf(lambda value: value + step, kind())

        def build(spark):
            return add("id")

        return Transform(build).fingerprint

    assert made(1) == made(1)
    assert len({made(1), made(2), made(1, LongType)}) == 3


def imported():
    """A function that names a constant of a module that another function has imported for it."""
    import rules_of_one_test as rules

    def clean(batch):
        return rules.LIMIT, batch

    return clean


def test_a_module_that_a_function_closes_over_is_followed_as_far_as_it_is_named(monkeypatch, tmp_path):
    (tmp_path / "rules_of_one_test.py").write_text("LIMIT = 1\nOTHER = open(__file__)\n")
    monkeypatch.syspath_prepend(tmp_path)
    function = imported()
    one = Transform(function).fingerprint
    monkeypatch.setattr("rules_of_one_test.LIMIT", 2)
    assert Transform(function).fingerprint != one
    sys.modules.pop("rules_of_one_test").OTHER.close()


def test_a_library_counts_by_its_version(monkeypatch):
    import importlib.metadata

    import yaml

    from airflow_ckpt_provider.transforms import origin

    def clean(batch):
        return yaml.safe_load(batch)

    one = Transform(clean).fingerprint
    # Its own class: a package of the same purpose may have put others in the place of the standard library's.
    monkeypatch.setattr(type(importlib.metadata.distribution("PyYAML")), "version", property(lambda _: "99"))
    origin._version.cache_clear()
    other = Transform(clean).fingerprint
    monkeypatch.undo()
    origin._version.cache_clear()
    assert one != other
    assert Transform(clean).fingerprint == one

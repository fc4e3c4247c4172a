"""A transform: what it may be, what it may return, and that its fingerprint follows what it does and not how it is laid out."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources.transform import Transform
from airflow_ckpt_provider.transforms.names import parse_name

BATCH = pa.record_batch({"id": [1, 2, 3]})


def applied(function):
    return [row["id"] for batch in Transform(function).apply([BATCH, BATCH]) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("function", "ids"),
    [
        (lambda batch: batch, [1, 2, 3] * 2),
        (lambda batch: pa.Table.from_batches([batch, batch]), [1, 2, 3] * 4),
        (lambda batch: [batch.slice(0, 1), pa.Table.from_batches([batch.slice(2)])], [1, 3] * 2),
        (lambda batch: (part for part in (batch.slice(1), None)), [2, 3] * 2),
        (lambda batch: batch.filter(pc.greater(batch["id"], 2)), [3] * 2),
        (lambda _: None, []),
        (lambda _: [], []),
    ],
)
def test_a_transform_may_return_a_batch_a_table_several_of_them_or_nothing(function, ids):
    assert applied(function) == ids


@pytest.mark.parametrize("result", [7, "batch", b"batch", {"id": [1]}, [7], ["batch"], [[object()]]])
def test_anything_else_is_refused_with_the_name_of_the_transform(result):
    def returns_nonsense(_batch):
        return result

    with pytest.raises(InvalidInputError, match=r"returns_nonsense returned a.*RecordBatch"):
        applied(returns_nonsense)


def test_a_transform_is_found_by_its_name():
    transform = Transform("json:dumps")
    assert transform.name == "json:dumps"
    assert transform.function.__name__ == "dumps"
    assert Transform("pyarrow:Table.from_batches").function == pa.Table.from_batches


@pytest.mark.parametrize("name", ["json", "json:", ":dumps", "", "json.dumps"])
def test_a_name_of_another_form_is_refused(name):
    with pytest.raises(InvalidInputError, match=r"package\.module:function"):
        parse_name(name)


@pytest.mark.parametrize("name", ["no_such_module_at_all:f", "json:no_such_function", "json:dumps.nothing"])
def test_a_name_that_cannot_be_imported_is_refused_with_what_to_do(name):
    with pytest.raises(InvalidInputError, match=r"cannot be imported.*install it on the worker"):
        Transform(name)


@pytest.mark.parametrize("value", ["json:__name__", 7, None, [len]])
def test_what_is_no_function_is_refused(value):
    with pytest.raises(InvalidInputError, match="function"):
        Transform(value)


# -- the fingerprint ------------------------------------------------------------------------------------------------------

PLAIN = "def clean(batch):\n    return batch.slice(1)\n"

SAME = {
    "a comment": "def clean(batch):\n    # drops the first row\n    return batch.slice(1)  # here\n",
    "layout": "def clean(\n    batch,\n):\n\n    return batch.slice(\n        1\n    )\n",
    "lines above it": "import os\n\n\ndef clean(batch):\n    return batch.slice(1)\n",
}

OTHER = {
    "the body": "def clean(batch):\n    return batch.slice(2)\n",
    "a default": "def clean(batch, first=1):\n    return batch.slice(1)\n",
    "a decorator": "import functools\n@functools.lru_cache\ndef clean(batch):\n    return batch.slice(1)\n",
}


@pytest.fixture
def from_source(tmp_path):
    """The function ``clean`` of a module with this source, as a DAG file would define it."""
    numbers = iter(range(100))

    def make(source):
        path = tmp_path / f"module_{next(numbers)}.py"
        path.write_text(source)
        namespace = {}
        exec(compile(source, str(path), "exec"), namespace)
        return namespace["clean"]

    return make


@pytest.mark.parametrize("what", SAME)
def test_the_fingerprint_stays_when_only_this_changes(from_source, what):
    assert Transform(from_source(SAME[what])).fingerprint == Transform(from_source(PLAIN)).fingerprint


@pytest.mark.parametrize("what", OTHER)
def test_the_fingerprint_changes_with_this(from_source, what):
    assert Transform(from_source(OTHER[what])).fingerprint != Transform(from_source(PLAIN)).fingerprint


def slicer(first, how=None):
    def clean(batch):
        return batch.slice(first), how

    return clean


def with_default(batch, first=1, *, last=None):
    return batch.slice(first), last


class Cleaner:
    """A callable object."""

    def __call__(self, batch):
        return batch.slice(1)

    def clean(self, batch):
        return batch.slice(2)


class OtherCleaner:
    def __call__(self, batch):
        return batch.slice(2)


@dataclass(frozen=True)
class Settings:
    first: int

    def clean(self, batch):
        return batch.slice(self.first)


PAIRS = {
    "a value it closes over": (lambda: slicer(1), lambda: slicer(2)),
    "a list it closes over": (lambda: slicer(1, ["a"]), lambda: slicer(1, ["b"])),
    "a mapping it closes over": (lambda: slicer(1, {"a": 1}), lambda: slicer(1, {"a": 2})),
    "a function it closes over": (lambda: slicer(1, slicer(1)), lambda: slicer(1, slicer(2))),
    "a positional argument of a partial": (lambda: functools.partial(slicer, 1), lambda: functools.partial(slicer, 2)),
    "a named argument of a partial": (
        lambda: functools.partial(with_default, first=1),
        lambda: functools.partial(with_default, first=2),
    ),
    "another function": (lambda: slicer(1), lambda: with_default),
    "true and one": (lambda: slicer(1), lambda: slicer(True)),
    "a set it closes over": (lambda: slicer(1, {"a"}), lambda: slicer(1, {"b"})),
    "bytes it closes over": (lambda: slicer(1, b"a"), lambda: slicer(1, b"b")),
    "a method and another": (lambda: Cleaner().clean, lambda: Cleaner().__call__),
    "a callable object": (Cleaner, OtherCleaner),
    "settings of a method's dataclass": (lambda: Settings(1).clean, lambda: Settings(2).clean),
    "settings it closes over": (lambda: slicer(1, Settings(1)), lambda: slicer(1, Settings(2))),
}


@pytest.mark.parametrize("what", PAIRS)
def test_the_fingerprint_changes_with_what_a_function_holds(what):
    one, other = PAIRS[what]
    assert Transform(one()).fingerprint == Transform(one()).fingerprint
    assert Transform(one()).fingerprint != Transform(other()).fingerprint


def test_a_function_that_holds_itself_has_a_fingerprint():
    def clean(batch, rest=[]):  # noqa: B006 - a default that holds itself too
        return clean(batch) or rest

    clean.__defaults__[0].append(clean.__defaults__[0])
    assert len(Transform(clean).fingerprint) == 64


def test_the_fingerprint_is_the_same_in_another_process(tmp_path):
    (tmp_path / "shop_transforms.py").write_text(PLAIN)
    code = "from airflow_ckpt_provider.sources.transform import Transform; print(Transform('shop_transforms:clean').fingerprint)"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}", "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 64

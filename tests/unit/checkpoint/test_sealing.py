"""What the seal of a generation holds, and when there is none."""

from __future__ import annotations

import obstore
import pytest
from msgspec.structs import replace
from support.appending import seal as seal_of
from support.samples import MANIFEST_JSON
from unit.checkpoint.test_checkpoint import plan_of, staged

from airflow_ckpt_provider.exceptions import (
    CorruptObjectError,
    NotSealedError,
    RowCountError,
)


def test_a_seal_holds_the_totals_and_all_manifests(checkpoint):
    plan = plan_of("000000", "000001", "000002")
    for split, rows in (("000002", 5), ("000000", 10), ("000001", 0)):
        checkpoint.publish(staged(split, rows))
    seal = seal_of(checkpoint, plan)
    assert (seal.splits, seal.rows, seal.bytes, seal.files) == (3, 15, 200, 2)
    assert seal.manifests == (MANIFEST_JSON, MANIFEST_JSON)
    assert checkpoint.sealed() == seal
    assert seal_of(checkpoint, plan) == seal


def test_a_seal_over_missing_splits_is_refused_and_nothing_is_sealed(checkpoint):
    checkpoint.publish(staged("000000"))
    with pytest.raises(NotSealedError, match="2 of 3 splits"):
        seal_of(checkpoint, plan_of("000000", "000001", "000002"))
    assert checkpoint.sealed() is None


def test_nothing_to_write_is_sealed_with_zero_rows(checkpoint):
    seal = seal_of(checkpoint, plan_of())
    assert (seal.splits, seal.rows, seal.manifests) == (0, 0, ())


@pytest.mark.parametrize("wrong", [{"split": "000009"}, {"manifest": None}, {"rows": 0}])
def test_a_staged_record_that_contradicts_itself_is_not_sealed(store, checkpoint, wrong):
    store.create(checkpoint.paths.staged("000000"), replace(staged("000000"), **wrong))
    with pytest.raises((RowCountError, CorruptObjectError), match="000000"):
        seal_of(checkpoint, plan_of("000000"))
    assert checkpoint.sealed() is None


def test_a_damaged_staged_record_is_named_when_sealing(store, checkpoint):
    obstore.put(store.location.open(), checkpoint.paths.staged("000000"), b"{}")
    with pytest.raises(CorruptObjectError, match=r"staged/000000\.json"):
        seal_of(checkpoint, plan_of("000000"))

"""The commit group that a generation is bound to, once."""

from __future__ import annotations

import msgspec
import obstore
import pytest
from msgspec.structs import replace
from support.samples import GROUP, HEADER, KEY

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.documents import Member
from airflow_ckpt_provider.checkpoint.group import bind, bound_group, list_members
from airflow_ckpt_provider.exceptions import (
    CheckpointMissingError,
)


def test_a_generation_is_bound_to_one_commit_group_for_ever(checkpoint):
    assert bound_group(checkpoint) is None
    assert bind(checkpoint, GROUP) == GROUP
    assert bind(checkpoint, replace(GROUP, id="ff" * 16, horizon=99)) == GROUP


def test_the_members_of_a_group_are_stored_once_and_not_with_each_of_them(store):
    members = tuple(sorted(Member(key=f"orders/{n}", generation=1) for n in range(50)))
    group = replace(GROUP, members=members)
    each = [Checkpoint.create(store, replace(HEADER, key=member.key)) for member in members]
    list_members(each[0], group)
    for checkpoint in each:
        assert bind(checkpoint, group) is group
        assert bound_group(checkpoint) == group
    stored = {name: len(bytes(obstore.get(store.location.open(), name).bytes())) for name in store.names("")}
    assert max(size for name, size in stored.items() if name.endswith("/group.json")) < 500
    (listed,) = [name for name in stored if "/groups/" in name]
    assert listed == each[0].paths.members(group.id)
    obstore.delete(store.location.open(), listed)
    with pytest.raises(CheckpointMissingError, match=listed):
        bound_group(each[7])


def test_members_sort_so_that_a_group_has_one_identity(checkpoint):
    assert msgspec.to_builtins(checkpoint.member) == {"key": KEY.value, "generation": 1}

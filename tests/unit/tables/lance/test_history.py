"""What the versions of a dataset tell of a commit, whoever made the others."""

from __future__ import annotations

import pytest
from support.lance_world import LanceWorld

from airflow_ckpt_provider.checkpoint.group import bound_group
from airflow_ckpt_provider.write import commits


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compaction_that_takes_an_index_along_hides_no_commit(tmp_path, when):
    world = LanceWorld(tmp_path)
    world.put_files()
    world.create_dataset()
    world.dataset.create_scalar_index("id", "BTREE")
    attempt = world.stage()
    if when == "before":
        world.foreign_append()
        base = world.as_table().state(attempt.checkpoint.header.table)
        world.dataset.optimize.compact_files()
        (settled,) = world.commit(attempt)
        assert settled.commit.commit_id > base.horizon
    else:
        world.commit(attempt)
        world.dataset.optimize.compact_files()
    ids = world.ids()
    assert len(ids) == len(set(ids))
    # Nothing but the versions is asked here.
    group, headers = bound_group(attempt.checkpoint), [attempt.checkpoint.header]
    assert world.as_table().state(headers[0].table).find(group, headers) is not None
    commits.verify(attempt.checkpoint, attempt.checkpoint.committed(), world.as_table())
    (again,) = world.commit(attempt)
    assert not again.landed_now
    assert world.ids() == ids

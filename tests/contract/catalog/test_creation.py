"""What a commit that creates its table relies on, of every catalog: that it is told if the table is there already."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from contract.catalog.backends import BACKENDS
from contract.catalog.modes import SCHEMA, SPEC, TABLE
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table.update import AssertCreate

RACERS = 8


@pytest.fixture
def backend(request, tmp_path):
    backend = BACKENDS[request.param](request, tmp_path)
    (tmp_path / "warehouse").mkdir(exist_ok=True)
    opened(backend).create_namespace("shop")
    return backend


def opened(backend):
    return load_catalog("iceberg_default", **backend.properties)


def created(catalog, writer):
    """A request to create the table; nothing is created yet."""
    transaction = catalog.create_table_transaction(TABLE, SCHEMA, partition_spec=SPEC, properties={"writer": str(writer)})
    table = transaction._table
    return lambda: catalog.commit_table(table, (AssertCreate(),), transaction._updates)


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_a_table_is_there_with_the_commit_that_creates_it_and_not_before(backend):
    catalog = opened(backend)
    commit = created(catalog, "first")
    with pytest.raises(NoSuchTableError):
        catalog.load_table(TABLE)
    commit()
    table = opened(backend).load_table(TABLE)
    assert table.properties["writer"] == "first"
    assert [field.name for field in table.spec().fields] == ["ts_day", "id_bucket", "region"]


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_the_second_of_two_creations_is_told_and_changes_nothing(backend):
    catalog = opened(backend)
    first, second = created(catalog, "first"), created(catalog, "second")
    first()
    with pytest.raises((CommitFailedException, TableAlreadyExistsError)):
        second()
    assert catalog.load_table(TABLE).properties["writer"] == "first"


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_of_eight_creations_at_the_same_moment_one_succeeds_and_is_the_table(backend):
    barrier = Barrier(RACERS)

    def race(writer):
        commit = created(opened(backend), writer)
        barrier.wait()
        try:
            commit()
        except (CommitFailedException, TableAlreadyExistsError):
            return None
        return str(writer)

    with ThreadPoolExecutor(RACERS) as pool:
        winners = [writer for writer in pool.map(race, range(RACERS)) if writer is not None]
    assert winners == [opened(backend).load_table(TABLE).properties["writer"]]

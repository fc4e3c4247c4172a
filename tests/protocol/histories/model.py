"""What a history of commits does to a table, told without the product: each snapshot's rows follow from those of its parent.

The model knows a snapshot by its id only. What it did is computed from what its writer had pinned, when the table shows it; so
the serial order is that of the snapshots, and each of them happened on top of exactly its parent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.table import Table


class Row(NamedTuple):
    """``value`` is another one in every row that is ever written, so that no row is mistaken for another."""

    id: int
    value: float
    kind: str | None
    note: str | None = None


#: Rows of a table: how often each is there.
Rows = Counter[Row]

#: Iceberg filters, and what they are in Python. A null matches none.
FILTERS: dict[str, Callable[[Row], bool]] = {
    "id < 5": lambda row: row.id < 5,
    "kind = 'k0'": lambda row: row.kind == "k0",
}


@dataclass
class Generation:
    """One generation of a key: what it has pinned to write, and what became of it.

    :param rows: what its source gave when it was planned; None before that.
    :param mark: from where to where it reads, if it reads an increment; snapshots, the first excluded.
    :param own: rows in files that hold nothing but this generation's, once it has landed; ``files`` are those files.
    :param pinned: snapshot of the table that it reads.
    :param complete_on: head of the table when the newest seal was made; -1 if there is none.
    :param commits: snapshot ids that were ever reported for it; None for a commit that changes nothing.
    """

    number: int
    mode: str
    parameters: dict[str, Any]
    replaces: Generation | None
    partition_of: Callable[[Row], tuple[Any, ...]]
    rows: Rows | None = None
    mark: tuple[int | None, int | None] | None = None
    own: Rows = field(default_factory=Counter)
    landed: int | None = None
    files: set[str] = field(default_factory=set)
    pinned: int | None = None
    complete_on: int | None = -1
    commits: set[int | None] = field(default_factory=set)


def land(rows: Rows, members: list[Generation]) -> Rows:
    """The table's rows after a snapshot of these generations on top of ``rows``; each learns which are its own."""
    new = sum((member.rows for member in members), Counter())
    before = sum((member.replaces.own for member in members if member.replaces), Counter())
    first = members[0]
    for member in members:
        member.own = Counter(member.rows)
    if first.mode == "upsert":
        (one,) = members
        return _upsert(rows - before, one)
    if all(member.replaces for member in members):
        return rows - before + new
    match first.mode:
        case "append" | "create":
            kept = rows - before
        case "overwrite" if first.parameters:
            matches = FILTERS[first.parameters["overwrite_filter"]]
            kept = Counter({row: count for row, count in rows.items() if not matches(row)})
        case "overwrite":
            kept = Counter()
        case "overwrite_partitions":
            gone = {member.partition_of(row) for member in members for row in member.rows}
            kept = Counter({row: count for row, count in (rows - before).items() if first.partition_of(row) not in gone})
    return kept + new


def _upsert(rows: Rows, one: Generation) -> Rows:
    """Rows with the source's in place of those of the same id; what no row has the id of, is inserted and the writer's own."""
    source = {row.id: row for row in one.rows}
    known = {row.id for row in rows}
    updates = one.parameters.get("when_matched", "update") == "update"
    inserts = one.parameters.get("when_not_matched", "insert") == "insert"
    found: Rows = Counter()
    for row, count in rows.items():
        found[source[row.id] if updates and row.id in source else row] += count
    one.own = Counter({row: 1 for row in one.rows if row.id not in known}) if inserts else Counter()
    return found + one.own


@dataclass
class History:
    """All snapshots that a table has ever had. The model forgets none, whatever the table's owner expires.

    :param expired: whether snapshots were ever expired.
    :param remembered: commit groups that the table's properties have to remember (I10).
    """

    rows: dict[int | None, Rows] = field(default_factory=lambda: {None: Counter()})
    parents: dict[int, int | None] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    operations: dict[int, str] = field(default_factory=dict)
    members: dict[int, list[Generation]] = field(default_factory=dict)
    added: dict[int, int] = field(default_factory=dict)
    expired: bool = False
    remembered: set[str] = field(default_factory=set)

    def lineage(self, snapshot_id: int | None) -> Iterator[int]:
        """A snapshot and all its ancestors, also those that were expired."""
        while snapshot_id is not None:
            yield snapshot_id
            snapshot_id = self.parents[snapshot_id]

    def between(self, since: int | None, head: int | None) -> list[int] | None:
        """Snapshots after ``since`` up to ``head``, newest first; None if ``since`` is no ancestor."""
        found = []
        for snapshot_id in self.lineage(head):
            if snapshot_id == since:
                return found
            found.append(snapshot_id)
        return found if since is None else None

    def appended(self, since: int | None, head: int | None) -> Rows:
        """Rows that the appends in between have added; all that is there, if there is no ``since``."""
        if since is None:
            return self.rows[head]
        appends = [one for one in self.between(since, head) or [] if self.operations[one] == "append"]
        return sum((self.rows[one] - self.rows[self.parents[one]] for one in appends), Counter())


def rows_in(table: Table, snapshot_id: int | None) -> Rows:
    """The rows of a snapshot, as pyiceberg reads them."""
    if snapshot_id is None:
        return Counter()
    found = table.scan(snapshot_id=snapshot_id).to_arrow()
    names = [name for name in Row._fields if name in found.column_names]
    return Counter(Row(**row) for row in found.select(names).to_pylist())


def partitioning(table: Table, spec_id: int) -> Callable[[Row], tuple[Any, ...]]:
    """Partition of a row under a spec."""
    schema = table.schema()
    fields = [
        (schema.find_column_name(one.source_id), one.transform.transform(schema.find_type(one.source_id)))
        for one in table.specs()[spec_id].fields
    ]
    return lambda row: tuple(transform(getattr(row, name)) for name, transform in fields)

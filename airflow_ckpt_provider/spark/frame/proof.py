"""Whether each partition of a DataFrame has the same rows whenever it is computed, by the physical plan that computes it.

Rows come from scans of files, whose partitions are pinned as slices of files, or from what the plan itself holds. On their way,
each operator is known to keep a row in its partition, or to place it by a hash of some columns; any other is refused by its name.

**Values that depend on the order of rows.** Behind a shuffle, rows arrive in any order, and a sum of floats, a ``first`` or a
``row_number`` with ties may come out otherwise in another attempt. That is harmless as long as such a value does not decide in
which partition its row is: a row has one place, and the attempt that computes the place decides the value. So a shuffle behind
another one may hash only columns that were there before the first.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.spark.frame.plans import items

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Operators that leave each row, or what becomes of it, in its partition, and those whose partitions are those of a shuffle below.
_KEEPING = {
    "AggregateInPandasExec", "ArrowAggregatePythonExec", "ArrowEvalPythonExec", "ArrowEvalPythonUDTFExec", "ArrowWindowPythonExec",
    "BatchEvalPythonExec", "BatchEvalPythonUDTFExec", "BroadcastExchangeExec", "BroadcastHashJoinExec",
    "CartesianProductExec", "CollectMetricsExec", "ColumnarToRowExec", "ExpandExec", "FilterExec",
    "FlatMapCoGroupsInArrowExec", "FlatMapCoGroupsInPandasExec", "FlatMapGroupsInArrowExec", "FlatMapGroupsInPandasExec",
    "GenerateExec", "HashAggregateExec", "InputAdapter", "MapInArrowExec", "MapInPandasExec", "ObjectHashAggregateExec",
    "ProjectExec", "ReusedSubqueryExec", "RowToColumnarExec", "ShuffledHashJoinExec", "SortAggregateExec",
    "SortExec", "SortMergeJoinExec", "SubqueryBroadcastExec", "SubqueryExec", "TakeOrderedAndProjectExec", "UnionExec",
    "WholeStageCodegenExec", "WindowExec", "WindowGroupLimitExec", "WindowInPandasExec",
}  # fmt: skip

#: Why others are refused that are met often, and what to do instead.
_REFUSED = {
    "InMemoryTableScanExec": "a cached DataFrame is cut as it was when it was cached: do not cache it, or write it to files first",
    "RDDScanExec": "rows that the program itself has made say nothing of what they are: write them to files first",
    "ExternalRDDScanExec": "rows that the program itself has made say nothing of what they are: write them to files first",
    "BatchScanExec": "Spark does not say which rows a partition of this connector has",
    "RowDataSourceScanExec": "Spark does not say which rows a partition of this connector has",
    "CoalesceExec": "coalesce gathers partitions by the machines on which their rows are: leave it out",
    "SampleExec": "a sample depends on how the input is cut: filter on a hash of a column",
    "GlobalLimitExec": "a limit takes other rows every time: put an orderBy that leaves no ties right before it",
    "LocalLimitExec": "a limit takes other rows every time: put an orderBy that leaves no ties right before it",
    "CollectLimitExec": "a limit takes other rows every time: put an orderBy that leaves no ties right before it",
    "AdaptiveSparkPlanExec": "Spark decides while it runs how rows are dealt: leave spark.sql.adaptive.enabled to this stage",
}

_SCAN, _RANGE, _VALUES = "FileSourceScanExec", "RangeExec", "LocalTableScanExec"
_SHUFFLE, _REUSED, _NESTED_LOOP = "ShuffleExchangeExec", "ReusedExchangeExec", "BroadcastNestedLoopJoinExec"

#: Joins by a nested loop, with the side that is sent to all, that give out rows of the other side only, in their partitions.
_LOOPS = {
    ("Inner", "BuildLeft"), ("Inner", "BuildRight"), ("Cross", "BuildLeft"), ("Cross", "BuildRight"), ("LeftOuter", "BuildRight"),
    ("LeftSemi", "BuildRight"), ("LeftAnti", "BuildRight"), ("RightOuter", "BuildLeft"),
}  # fmt: skip

#: Rows that a plan may hold itself: those of a small table that the program has given.
_MOST_VALUES = 100_000

#: What the text of a slice of a file begins with.
_SLICE = "path:"


class Inputs(NamedTuple):
    """What a plan reads.

    :param digest: of all of it, in its order.
    :param files: number of slices of files.
    """

    digest: str
    files: int


class Proof:
    """The plan of a DataFrame, looked at from its last operator to its scans.

    :param plan: the physical plan, a JVM object.
    """

    def __init__(self, plan: Any) -> None:  # noqa: ANN401 - a JVM object
        #: Why the partitions cannot be told, each reason once.
        self.problems: dict[str, None] = {}
        self._leaves: list[Any] = []
        self._visit(plan)

    def inputs(self) -> Inputs:
        """What the partitions of each scan read, and the values that the plan holds. Asked for once the plan has its RDD."""
        digest, files = hashlib.sha256(), 0
        for leaf in self._leaves:
            for text in _slices(leaf) if leaf.getClass().getSimpleName() == _SCAN else _values(leaf):
                digest.update(f"{text}\n".encode())
                files += text.startswith(_SLICE)
        return Inputs(digest.hexdigest(), files)

    def _visit(self, node: Any) -> bool:  # noqa: ANN401 - as above
        """Look at an operator and all below it; whether there is a shuffle among them."""
        name = node.getClass().getSimpleName()
        shuffled = [self._visit(child) for child in (*items(node.children()), *items(node.subqueries()))]
        if name == _SHUFFLE:
            self._require_placed(node, below=any(shuffled))
            return True
        if name == _REUSED:
            # What it stands for was looked at where it is computed.
            return _is_shuffle(node)
        if name in {_SCAN, _VALUES}:
            self._leaves.append(node)
            if name == _VALUES and node.rows().size() > _MOST_VALUES:
                self._refuse(f"the plan itself holds {node.rows().size():,} rows: write them to files first")
        elif name == _NESTED_LOOP:
            self._require_rows_of_one_side(node)
        elif name != _RANGE and name not in _KEEPING:
            self._refuse(f"{node.nodeName().strip()}: {_REFUSED.get(name, 'it is not known whether its partitions stay the same')}")
        return any(shuffled)

    def _require_placed(self, shuffle: Any, *, below: bool) -> None:  # noqa: ANN401 - as above
        """Refuse a shuffle that may deal rows otherwise another time.

        :param below: whether there is another one below it.
        """
        partitioning = shuffle.outputPartitioning()
        kind = partitioning.getClass().getSimpleName().rstrip("$")
        if kind == "SinglePartition":
            return
        if kind == "RangePartitioning":
            self._refuse("an order over all rows is cut by a sample of them: leave orderBy out, the table keeps none between files")
        elif kind == "RoundRobinPartitioning":
            self._refuse("repartition(n) without columns deals rows in the order in which they come: name columns, or leave it out")
        elif kind not in {"HashPartitioning", "ShufflePartitionIdPassThrough"}:
            self._refuse(f"it is not known how {partitioning} deals rows")
        elif below:
            there = {number for child in items(shuffle.children()) for number in _columns(child)[0]}
            keys = [partitioning.expr()] if kind == "ShufflePartitionIdPassThrough" else items(partitioning.expressions())
            for key in keys:
                if any(column.exprId().id() not in there for column in items(key.references().toSeq())):
                    self._refuse(
                        f"rows are dealt by {key.sql()}, which is computed of rows that come in any order, so that a row may be "
                        "in another partition another time: deal them by columns of the input"
                    )

    def _require_rows_of_one_side(self, join: Any) -> None:  # noqa: ANN401 - as above
        """Refuse a join that gives out rows of the side that every task has, which it deals in the order in which they came."""
        kind, side = str(join.joinType()), str(join.buildSide())
        if (kind, side) not in _LOOPS:
            self._refuse(
                f"a {kind} join without equal columns deals the rows that match nothing in any order: name columns that are equal"
            )

    def _refuse(self, why: str) -> None:
        self.problems[why] = None


def _is_shuffle(node: Any) -> bool:  # noqa: ANN401 - as above
    """Whether an operator is a shuffle, or stands for one that is computed elsewhere in the plan."""
    name = node.getClass().getSimpleName()
    return name == _SHUFFLE or (name == _REUSED and _is_shuffle(node.child()))


def _slices(scan: Any) -> Iterator[str]:  # noqa: ANN401 - as above
    """The slices of files of each partition of a scan, in their order."""
    for rdd in items(scan.inputRDDs()):
        yield "scan"
        for partition in rdd.partitions():
            yield partition.getClass().getSimpleName()
            for file in partition.files():
                # Path, slice and values of partition columns are in its text.
                yield f"{file.toString()} {file.modificationTime()} {file.fileSize()}"


def _values(scan: Any) -> Iterator[str]:  # noqa: ANN401 - as above
    """The rows that a plan holds, each by its hash."""
    yield "values"
    for row in items(scan.rows()):
        yield str(row.hashCode())


def _columns(node: Any) -> tuple[set[int], bool]:  # noqa: ANN401 - as above
    """Numbers of the columns that operators without a shuffle below them give out, and whether this one has a shuffle."""
    found, has_shuffle = set[int](), _is_shuffle(node)
    for child in items(node.children()):
        columns, below = _columns(child)
        found |= columns
        has_shuffle |= below
    if not has_shuffle:
        found |= {column.exprId().id() for column in items(node.output())}
    return found, has_shuffle

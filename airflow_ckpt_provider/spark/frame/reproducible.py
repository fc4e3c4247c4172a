"""Whether a DataFrame has the same rows when it is computed again. Half of it may be staged already, and must fit the other half.

Refused: what picks anew each time (``rand``, ``uuid``, ``shuffle``, row and partition numbers, functions marked as not
deterministic), the current time, samples (also with a seed: they depend on how the input happens to be cut), ``limit``,
``offset`` and ``tail`` without an order, and ``dropDuplicates`` on columns that leave the id of the row that stays open.

Not detected, because Spark does not know it either: aggregates that depend on the order of rows (``first``, ``any_value``,
``collect_list``), which are harmless unless an id or a filter comes from them; ties in an order; what the Python code of
``build`` decides by itself; a DataFrame made from an RDD, or from a checkpoint of its own; input that changes between attempts.

A classic session shows its plan as objects, which know what is deterministic. A Connect session shows it as text, in which
operators and functions have names, and a UDF that was registered under a name does not show that it is not deterministic; one
that is used directly is in the request that the client sends.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.spark.code_shipping import is_connect
from airflow_ckpt_provider.spark.frame.plans import COLUMN_NUMBERS, WHOLE_PLANS, items
from airflow_ckpt_provider.spark.stage import spark_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

_TIME = {"current_date", "current_timestamp", "now", "localtimestamp", "current_time", "current_batch_timestamp"}
_RANDOM = {
    "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "monotonically_increasing_id", "spark_partition_id",
    "java_method", "reflect", "try_reflect",
}  # fmt: skip

#: Marked as not deterministic by Spark, but the same whenever the same input is read.
_HARMLESS = {"input_file_name", "input_file_block_start", "input_file_block_length"}

_UNORDERED = {"GlobalLimit": "limit", "LocalLimit": "limit", "Offset": "offset", "Tail": "tail"}

#: Operators that keep the order of their input.
_KEEPING = {"Project", "Filter", "SubqueryAlias", "View", *_UNORDERED}

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"

_CALL = re.compile(r"(?<![\w.`])(\w+)\(")
_LINE = re.compile(r"^(?P<indent>[ :+\-|]*)(?P<operator>\w+)(?P<rest>.*)$")
_ATTRIBUTE = re.compile(r"([^,\[\]() ]+)" + COLUMN_NUMBERS + r"(?=[,\]])")


class _Node(NamedTuple):
    """An operator of a plan.

    :param keys: names of the columns that a ``Deduplicate`` compares.
    :param columns: names of the columns of its input; from text, about those that it can have.
    """

    operator: str
    ordered: bool
    keys: tuple[str, ...]
    columns: frozenset[str]
    calls: tuple[str, ...]
    below: tuple[_Node, ...]


def require_reproducible(spark: SparkSession, frame: DataFrame, id_columns: Sequence[str], name: str) -> None:
    """Refuse a DataFrame that is known to have other rows, or rows in other buckets, when it is computed again.

    :raises InvalidInputError: naming each operator and what to do instead.
    """
    if is_connect(spark):
        root = _from_text(spark, frame)._replace(calls=tuple(_random_udfs(frame)))
    else:
        classic: Any = frame
        root = _from_plan(classic._jdf.queryExecution().analyzed(), spark)  # noqa: SLF001 - no other way to the plan
    problems = [problem for node in _walk(root) for problem in _problems(node, id_columns)]
    if problems:
        raise InvalidInputError(
            f"The DataFrame of {name} is not reproducible, so a retry could not go on where this attempt stops:\n  "
            + "\n  ".join(dict.fromkeys(problems))
            + "\nChange it as said; or, if it has the same rows every time all the same, say reproducible=True."
        )


def _problems(node: _Node, id_columns: Sequence[str]) -> Iterator[str]:
    for call in node.calls:
        if call in _TIME:
            yield f"{call}() is another time in every attempt: pass it in parameters, such as parameters={{'day': '{{{{ ds }}}}'}}"
        else:
            yield f"{call} gives other values every time: derive them from columns of the row, such as a hash of its id"
    if node.operator in _UNORDERED and not _ordered(node):
        yield f"{_UNORDERED[node.operator]} takes other rows every time: put an orderBy that leaves no ties right before it"
    if node.operator == "Sample":
        yield "sample depends on how the input is cut: filter on a hash of the id, such as 'pmod(xxhash64(id), 10) = 0'"
    if node.operator == "Deduplicate" and node.columns.intersection(id_columns) - set(node.keys):
        yield (
            f"dropDuplicates({list(node.keys)}) keeps any of several rows with different ids: put the id columns among its "
            "columns, or keep the row with the smallest id"
        )


def _ordered(node: _Node) -> bool:
    while node.operator in _KEEPING and len(node.below) == 1:
        node = node.below[0]
    return node.operator == "Sort" and node.ordered


def _walk(node: _Node) -> Iterator[_Node]:
    yield node
    for below in node.below:
        yield from _walk(below)


# -- the plan as objects ----------------------------------------------------------------------------------------------


def _from_plan(plan: Any, spark: SparkSession) -> _Node:  # noqa: ANN401 - a JVM object
    operator = plan.getClass().getSimpleName()
    below = [_from_plan(child, spark) for child in (*items(plan.children()), *items(plan.subqueries()))]
    calls = [call for expression in items(plan.expressions()) for call in _calls(expression, spark)]
    keys = [key.name() for key in items(plan.keys())] if operator == "Deduplicate" else []
    ordered = operator == "Sort" and bool(getattr(plan, "global")())
    columns = [column.name() for child in items(plan.children()) for column in items(child.output())] if keys else []
    return _Node(operator, ordered, tuple(keys), frozenset(columns), tuple(calls), tuple(below))


def _calls(expression: Any, spark: SparkSession) -> Iterator[str]:  # noqa: ANN401 - a JVM object
    """What makes an expression not reproducible: the innermost calls."""
    children = items(expression.children())
    name = expression.prettyName().lower()
    if name in _TIME:
        yield name
    elif not expression.deterministic() and all(child.deterministic() for child in children) and name not in _HARMLESS:
        kind = expression.getClass().getSimpleName()
        if kind in {"PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"}:
            yield f"the non-deterministic function {expression.name() if kind.startswith('Python') else expression}"
        elif not _is(spark, expression, "PlanExpression"):
            yield f"{name}()"
    for child in children:
        yield from _calls(child, spark)


def _is(spark: SparkSession, expression: Any, kind: str) -> bool:  # noqa: ANN401 - a JVM object
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - as above
    return bool(jvm.java.lang.Class.forName(f"{_EXPRESSIONS}.{kind}").isInstance(expression))


# -- the plan as text -------------------------------------------------------------------------------------------------


def analyzed_plan(spark: SparkSession, frame: DataFrame) -> str:
    """The analyzed plan of a DataFrame as text, as a whole. Its first line is the schema."""
    with spark_settings(spark, WHOLE_PLANS):
        shown: Any = frame
        if is_connect(spark):
            text = shown._explain_string(extended=True)  # noqa: SLF001 - explain() prints it
        else:
            explaining = shown._sc._jvm.PythonSQLUtils  # noqa: SLF001 - as explain() does
            text = explaining.explainString(shown._jdf.queryExecution(), "extended")  # noqa: SLF001 - as above
    return str(text).partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]


def _from_text(spark: SparkSession, frame: DataFrame) -> _Node:
    plan = analyzed_plan(spark, frame)
    # Its first line is the schema.
    lines = [match for line in plan.strip("\n").split("\n")[1:] if (match := _LINE.match(line))]
    open_nodes: list[tuple[int, str, str, list[Any]]] = [(-1, "", "", [])]
    for line in lines:
        depth = len(line["indent"])
        while open_nodes[-1][0] >= depth:
            _close(open_nodes)
        open_nodes.append((depth, line["operator"], line["rest"], []))
    while len(open_nodes) > 1:
        _close(open_nodes)
    return _node("", "", open_nodes[0][3])


def _close(open_nodes: list[tuple[int, str, str, list[Any]]]) -> None:
    _, operator, rest, below = open_nodes.pop()
    open_nodes[-1][3].append(_node(operator, rest, below))


def _node(operator: str, rest: str, below: Sequence[_Node]) -> _Node:
    calls = [name for name in map(str.lower, _CALL.findall(rest)) if name in _TIME | _RANDOM]
    named = [name.strip() for name in _ATTRIBUTE.findall(rest)]
    passed = [] if operator in {"Project", "Aggregate"} else [node.columns for node in below]
    return _Node(
        operator,
        ordered=operator == "Sort" and re.search(r"\], true\b", rest) is not None,
        keys=tuple(named) if operator == "Deduplicate" else (),
        columns=frozenset(named).union(*passed),
        calls=tuple(call if call in _TIME else f"{call}()" for call in calls),
        below=tuple(below),
    )


def _random_udfs(frame: Any) -> Iterator[str]:  # noqa: ANN401 - a Connect DataFrame
    """Python UDFs in the client's request that are marked as not deterministic."""
    for name in _random_in(frame._plan.to_proto(frame.sparkSession.client)):  # noqa: SLF001 - the text does not show the mark
        yield f"the non-deterministic function {name}"


def _random_in(message: Any) -> Iterator[str]:  # noqa: ANN401 - a protobuf message
    if message.DESCRIPTOR.name == "CommonInlineUserDefinedFunction" and not message.deterministic:
        yield message.function_name
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        entry = field.message_type.GetOptions().map_entry
        if entry:
            parts = [part for part in value.values() if hasattr(part, "ListFields")]
        else:
            parts = [value] if hasattr(value, "ListFields") else list(value)
        for part in parts:
            yield from _random_in(part)

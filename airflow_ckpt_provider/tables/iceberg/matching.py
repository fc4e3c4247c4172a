"""Which data files hold only rows that match an expression, and which may hold some.

pyiceberg's evaluators are close, and are used here comparison by comparison, but cannot be trusted to drop a file: a column
without a count of nulls or NaNs passes for one without any (``x <= 10`` then drops rows whose x is NaN), and ``x != 1`` holds
for null. Here a comparison holds for no null, as in SQL, and what is not known is not assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BoundReference, Or
from pyiceberg.expressions.visitors import (
    _ExpressionEvaluationVisitor,
    _InclusiveMetricsEvaluationVisitor,
    _StrictMetricsEvaluationVisitor,
    bind,
    inclusive_projection,
    manifest_evaluator,
    visit,
)
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, FloatType

from airflow_ckpt_provider.scan.comparing import fitted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.expressions import BooleanExpression, BoundPredicate, BoundTerm
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import LiteralValue
    from pyiceberg.types import NestedField

#: Answers about partitions that are remembered: a partition usually has many files.
ANSWERS = 10_000


class MetricsEvaluator:
    """An expression over the rows of a table, asked about the table's files.

    :param expression: over the table's current schema.
    """

    def __init__(self, metadata: TableMetadata, expression: BooleanExpression) -> None:
        self.schema = metadata.schema()
        self._specs = metadata.specs()
        self._given = fitted(expression, self.schema)
        self._bound = bind(self.schema, self._given, case_sensitive=True)
        self._manifests: dict[int, Callable[[ManifestFile], bool]] = {}
        self._projected: dict[tuple[int, int, bool], BooleanExpression] = {}
        self._answers: dict[tuple[Any, ...], bool] = {}

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Whether files of the manifest may hold matching rows, by its summary of their partitions."""
        spec_id = manifest.partition_spec_id
        if spec_id not in self._manifests:
            spec = self._specs[spec_id]
            self._manifests[spec_id] = manifest_evaluator(spec, self.schema, inclusive_projection(self.schema, spec)(self._given))
        return self._manifests[spec_id](manifest)

    def whole(self, file: DataFile, spec_id: int) -> bool:
        """Whether every row of the file certainly matches."""
        return file.record_count >= 0 and visit(self._bound, _Whole(self, file, spec_id))

    def possible(self, file: DataFile, spec_id: int, *, metrics: bool = True) -> bool:
        """Whether some row of the file may match.

        :param metrics: whether the file's metrics are of its rows; those of a delete file are not.
        """
        return visit(self._bound, _Possible(self, file, spec_id, metrics=metrics))

    def by_partition(self, predicate: BoundPredicate, partition: Record, spec_id: int, *, strict: bool) -> bool:
        """What a partition alone says of one comparison: that it holds for all its rows (strict), or may for some."""
        key = (id(predicate), spec_id, strict)
        if key not in self._projected:
            self._projected[key] = self._project(predicate, spec_id, strict=strict)
        known = (*key, *partition._data)  # noqa: SLF001
        if known not in self._answers:
            if len(self._answers) >= ANSWERS:
                self._answers.clear()
            # UUID literals are bytes, partition values of that type are not.
            values = Record(*(value.bytes if isinstance(value, UUID) else value for value in partition._data))  # noqa: SLF001
            self._answers[known] = visit(self._projected[key], _PartitionValues(values, strict=strict))
        return self._answers[known]

    def _project(self, predicate: BoundPredicate, spec_id: int, *, strict: bool) -> BooleanExpression:
        spec = self._specs[spec_id]
        fields = Schema(*spec.partition_type(self.schema).fields)
        result: BooleanExpression = AlwaysFalse() if strict else AlwaysTrue()
        for part in spec.fields_by_source_id(predicate.term.ref().field.field_id):
            project = part.transform.strict_project if strict else part.transform.project
            projected = project(part.name, predicate)
            if projected is not None:
                result = (Or if strict else And)(result, bind(fields, projected, case_sensitive=True))
        return result


class _Whole(_StrictMetricsEvaluationVisitor):
    """Holds where all rows of one file match, by its metrics or by its partition, comparison by comparison."""

    def __init__(self, matcher: MetricsEvaluator, file: DataFile, spec_id: int) -> None:
        super().__init__(matcher.schema.as_struct(), file)
        self._matcher, self._partition, self._spec_id = matcher, file.partition, spec_id

    def visit_bound_predicate(self, predicate: BoundPredicate) -> bool:
        return (isinstance(predicate.term, BoundReference) and super().visit_bound_predicate(predicate)) or (
            self._matcher.by_partition(predicate, self._partition, self._spec_id, strict=True)
        )

    def visit_not_equal(self, term: BoundTerm, literal: LiteralValue) -> bool:
        return not self._can_contain_nulls(term.ref().field.field_id) and super().visit_not_equal(term, literal)

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> bool:
        return not self._can_contain_nulls(term.ref().field.field_id) and super().visit_not_in(term, literals)

    def visit_not_nan(self, term: BoundTerm) -> bool:
        return not self._can_contain_nulls(term.ref().field.field_id) and super().visit_not_nan(term)

    def _can_contain_nulls(self, field_id: int) -> bool:
        return self.null_counts.get(field_id) != 0

    def _can_contain_nans(self, field_id: int) -> bool:
        return isinstance(self._get_field(field_id).field_type, FloatType | DoubleType) and self.nan_counts.get(field_id) != 0

    def _get_field(self, field_id: int) -> NestedField:
        return self._matcher.schema.find_field(field_id)


class _Possible(_InclusiveMetricsEvaluationVisitor):
    """Holds where some row of one file may match, by its metrics and by its partition."""

    def __init__(self, matcher: MetricsEvaluator, file: DataFile, spec_id: int, *, metrics: bool) -> None:
        super().__init__(file)
        self._matcher, self._partition, self._spec_id, self._metrics = matcher, file.partition, spec_id, metrics

    def visit_bound_predicate(self, predicate: BoundPredicate) -> bool:
        known = self._metrics and isinstance(predicate.term, BoundReference)
        return (not known or super().visit_bound_predicate(predicate)) and (
            self._matcher.by_partition(predicate, self._partition, self._spec_id, strict=False)
        )


class _PartitionValues(_ExpressionEvaluationVisitor):
    """A projected comparison over the values of one partition; a strict one holds for no null."""

    def __init__(self, partition: Record, *, strict: bool) -> None:
        super().__init__(partition)
        self._strict = strict

    def _null(self, term: BoundTerm) -> bool:
        return self._strict and term.eval(self.struct) is None

    def visit_not_equal(self, term: BoundTerm, literal: LiteralValue) -> bool:
        return not self._null(term) and super().visit_not_equal(term, literal)

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> bool:
        return not self._null(term) and super().visit_not_in(term, literals)

    def visit_not_nan(self, term: BoundTerm) -> bool:
        return not self._null(term) and super().visit_not_nan(term)

    def visit_not_starts_with(self, term: BoundTerm, literal: LiteralValue) -> bool:
        return not self._null(term) and super().visit_not_starts_with(term, literal)

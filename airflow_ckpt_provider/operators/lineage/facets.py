"""What a task has done in OpenLineage's words. Imported only when OpenLineage asks, whose provider may not be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.generated.base import InputDataset, OutputDataset
from openlineage.client.generated.base_subset_dataset import (
    OutputSubsetOutputDatasetFacet,
    Partition,
    PartitionSubsetCondition,
)
from openlineage.client.generated.data_quality_assertions_dataset import Assertion, DataQualityAssertionsDatasetFacet
from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet
from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields
from openlineage.client.generated.storage_dataset import StorageDatasetFacet
from openlineage.client.generated.symlinks_dataset import Identifier, SymlinksDatasetFacet
from openlineage.client.generated.test_run import TestExecution, TestRunFacet

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ckpt_provider.operators.lineage.facts import CheckFacts, DatasetFacts, Lineage


def on_complete(lineage: Lineage) -> OperatorLineage[Any, Any]:
    """What a task that has succeeded has read and landed.

    Rows that were checked are those that have landed: what was found is told of the table, as of an input, where the specification
    has its place.
    """
    checked = [_checked(dataset, lineage.checks) for dataset in lineage.outputs if lineage.checks and dataset.written]
    return OperatorLineage(
        inputs=[*map(_input, lineage.inputs), *checked],
        outputs=[_output(dataset) for dataset in lineage.outputs],
        run_facets=_tests(lineage),
    )


def on_failure(lineage: Lineage) -> OperatorLineage[Any, Any]:
    """What a task that has failed has read; and what it has landed, should it have failed after that.

    A check that has failed says nothing of the table, which is as it was: it is told of the run alone.
    """
    return OperatorLineage(
        inputs=[_input(dataset) for dataset in lineage.inputs],
        outputs=[_output(dataset) for dataset in lineage.outputs if dataset.written is not None],
        run_facets=_tests(lineage),
    )


def _tests(lineage: Lineage) -> dict[str, TestRunFacet]:
    if not lineage.checks:
        return {}
    executions = [
        TestExecution(name=check.name, status="pass" if check.passed else "fail", severity="error", type=f"custom_{check.kind}")
        for check in lineage.checks
    ]
    return {"test": TestRunFacet(tests=executions)}


def _input(dataset: DatasetFacts) -> InputDataset:
    return InputDataset(*dataset.name, facets=_facets(dataset))


def _checked(dataset: DatasetFacts, checks: list[CheckFacts]) -> InputDataset:
    assertions = [
        Assertion(assertion=f"custom_{check.kind}", success=check.passed, severity="error", name=check.name) for check in checks
    ]
    return InputDataset(
        *dataset.name,
        facets=_facets(dataset),
        inputFacets={"dataQualityAssertions": DataQualityAssertionsDatasetFacet(assertions=assertions)},
    )


def _output(dataset: DatasetFacts) -> OutputDataset:
    facets: dict[str, Any] = {}
    if dataset.written is not None:
        rows, size, files = dataset.written
        facets["outputStatistics"] = OutputStatisticsOutputDatasetFacet(rowCount=rows, size=size, fileCount=files)
    if dataset.partitions:
        condition = PartitionSubsetCondition(partitions=[_partition(path) for path in dataset.partitions])
        facets["subset"] = OutputSubsetOutputDatasetFacet(outputCondition=condition)
    return OutputDataset(*dataset.name, facets=_facets(dataset), outputFacets=facets)


def _facets(dataset: DatasetFacts) -> dict[str, Any]:
    """What inputs and outputs have alike."""
    facets: dict[str, Any] = {}
    if dataset.columns is not None:
        facets["schema"] = SchemaDatasetFacet(fields=[_field(field) for field in dataset.columns])
    if dataset.version:
        facets["version"] = DatasetVersionDatasetFacet(datasetVersion=dataset.version)
    if dataset.table_format == "iceberg":
        facets["storage"] = StorageDatasetFacet(storageLayer="iceberg", fileFormat="parquet")
    if dataset.alias is not None:
        facets["symlinks"] = SymlinksDatasetFacet(identifiers=[Identifier(*dataset.alias, type="TABLE")])
    return facets


def _partition(path: str) -> Partition:
    dimensions = dict(part.split("=", 1) for part in path.split("/"))
    return Partition(dimensions={unquote_plus(name): unquote_plus(value) for name, value in dimensions.items()}, identifier=path)


def _field(field: pa.Field, name: str | None = None) -> SchemaDatasetFacetFields:
    """A column, with what is inside of it as the specification has it: members, ``_element``, or ``key`` and ``value``."""
    import pyarrow as pa

    kind, inner = field.type, list[SchemaDatasetFacetFields]()
    said = str(kind)
    if pa.types.is_struct(kind):
        said, inner = "struct", [_field(member) for member in kind]
    elif pa.types.is_map(kind):
        said, inner = "map", [_field(kind.key_field, "key"), _field(kind.item_field, "value")]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        said, inner = "array", [_field(kind.value_field, "_element")]
    return SchemaDatasetFacetFields(name=field.name if name is None else name, type=said, fields=inner)

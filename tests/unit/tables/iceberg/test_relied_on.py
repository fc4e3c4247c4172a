"""What is relied on of pyiceberg that is private, or that its pages say nothing of: it is there, and takes what it is given.

A test that fails after an upgrade of pyiceberg names the file that relies on what changed. Read there what it needs, make it fit
the new one, raise the lower bound in pyproject.toml if it fits no other any more, and correct the line here last.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import struct
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.catalog import AVAILABLE_CATALOGS, CatalogType, load_catalog
from pyiceberg.expressions.visitors import _StrictMetricsEvaluationVisitor
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import MetricModeTypes, PyArrowFileIO
from pyiceberg.manifest import DATA_FILE_TYPE, UNASSIGNED_SEQ, DataFile, FileFormat, ManifestWriterV2
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType
from support.appending import arrow_schema
from support.world import World

import airflow_ckpt_provider
from airflow_ckpt_provider.scan.doubles import read_exactly

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()))


class Relied(NamedTuple):
    """A function or class of pyiceberg that is private, or that its pages say nothing of.

    :param takes: names of its parameters, in their order.
    :param used_in: files of the package that rely on it.
    """

    name: str
    takes: str
    used_in: str


VISITORS = "pyiceberg.expressions.visitors"
RELIED = [
    Relied(f"{VISITORS}._StrictMetricsEvaluationVisitor", "struct file", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._StrictMetricsEvaluationVisitor.visit_bound_predicate", "self predicate", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._StrictMetricsEvaluationVisitor.visit_not_equal", "self term literal", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._StrictMetricsEvaluationVisitor.visit_not_in", "self term literals", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._StrictMetricsEvaluationVisitor.visit_not_nan", "self term", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._StrictMetricsEvaluationVisitor._can_contain_nulls", "self field_id", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._StrictMetricsEvaluationVisitor._can_contain_nans", "self field_id", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._StrictMetricsEvaluationVisitor._get_field", "self field_id", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._InclusiveMetricsEvaluationVisitor", "file", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._InclusiveMetricsEvaluationVisitor.visit_bound_predicate", "self predicate", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._ExpressionEvaluationVisitor", "struct", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._ExpressionEvaluationVisitor.visit_not_equal", "self term literal", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._ExpressionEvaluationVisitor.visit_not_in", "self term literals", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._ExpressionEvaluationVisitor.visit_not_nan", "self term", "tables/iceberg/matching.py"),
    Relied(f"{VISITORS}._ExpressionEvaluationVisitor.visit_not_starts_with", "self term literal", "tables/iceberg/matching.py"),
    Relied("pyiceberg.catalog.Catalog._load_file_io", "self properties location", "tables/iceberg/creation.py"),
    Relied("pyiceberg.catalog.Catalog._convert_schema_if_needed", "schema format_version", "tables/iceberg/creation.py"),
    Relied("pyiceberg.catalog.rest.RestCatalog._create_session", "self", "tables/catalogs.py"),
    Relied("pyiceberg.catalog.rest.RestCatalog._create_legacy_oauth2_auth_manager", "self session", "tables/catalogs.py"),
    Relied("pyiceberg.table.update.schema.UpdateSchema._apply", "self", "tables/iceberg/evolution.py"),
    Relied("pyiceberg.table.StagedTable", "identifier metadata metadata_location io catalog config", "tables/iceberg/creation.py"),
    Relied("pyiceberg.schema.assign_fresh_schema_ids", "schema_or_type next_id", "tables/iceberg/creation.py"),
    Relied("pyiceberg.schema.make_compatible_name", "name", "tables/iceberg/names.py"),
    Relied("pyiceberg.schema.sanitize_column_names", "schema", "tables/iceberg/rolling.py tables/iceberg/writer.py"),
    Relied("pyiceberg.partitioning.partition_record_value", "partition_field value schema", "tables/iceberg/partitions.py"),
    Relied(
        "pyiceberg.manifest.write_manifest",
        "format_version spec schema output_file snapshot_id avro_compression",
        "tables/iceberg/manifest/staged.py",
    ),
    Relied(
        "pyiceberg.manifest.write_manifest_list",
        "format_version output_file snapshot_id parent_snapshot_id sequence_number avro_compression",
        "tables/iceberg/commit.py",
    ),
    Relied("pyiceberg.utils.decimal.unscaled_to_decimal", "unscaled scale", "tables/iceberg/manifest/avro.py"),
    Relied("pyiceberg.io.pyarrow.compute_statistics_plan", "schema table_properties", "tables/iceberg/manifest/cutting.py"),
    Relied(
        "pyiceberg.io.pyarrow.data_file_statistics_from_parquet_metadata",
        "parquet_metadata stats_columns parquet_column_mapping",
        "tables/iceberg/manifest/cutting.py",
    ),
    Relied("pyiceberg.io.pyarrow.MetricsMode", "type length", "tables/iceberg/manifest/cutting.py"),
    Relied(
        "pyiceberg.io.pyarrow.parquet_path_to_id_mapping",
        "schema",
        "tables/iceberg/manifest/cutting.py tables/iceberg/rolling.py",
    ),
    Relied("pyiceberg.io.pyarrow.expression_to_pyarrow", "expr schema", "tables/iceberg/row_filter.py scan/iceberg.py"),
    Relied("pyiceberg.io.pyarrow.PyArrowFileIO.parse_location", "location properties", "tables/iceberg/orphans.py"),
    Relied("pyiceberg.utils.properties.property_as_int", "properties property_name default", "tables/iceberg/rolling.py"),
    Relied("pyiceberg.utils.truncate.truncate_upper_bound_binary_string", "value trunc_length", "tables/iceberg/upsert/bounds.py"),
    Relied("pyiceberg.table.locations.load_location_provider", "table_location table_properties", "tables/iceberg/writer.py"),
    Relied(
        "pyiceberg.manifest.ManifestWriterV2",
        "spec schema output_file snapshot_id avro_compression",
        "tables/iceberg/manifest/staged.py",
    ),
    Relied("pyiceberg.manifest.ManifestWriterV2._with_partition", "self format_version", "tables/iceberg/manifest/staged.py"),
    Relied("pyiceberg.manifest.data_file_with_partition", "partition_type format_version", "tables/iceberg/manifest/staged.py"),
    Relied(
        "pyiceberg.manifest.manifest_entry_schema_with_data_file", "format_version data_file", "tables/iceberg/manifest/staged.py"
    ),
    Relied("pyiceberg.table.snapshots.update_snapshot_summaries", "summary previous_summary", "tables/iceberg/commit.py"),
    Relied("pyiceberg.table.ManifestGroupPlanner", "table_metadata io row_filter case_sensitive options", "scan/iceberg.py"),
    Relied("pyiceberg.table.ManifestGroupPlanner.plan_manifest_entries", "self manifests", "scan/iceberg.py"),
    Relied(
        "pyiceberg.table.delete_file_index.DeleteFileIndex.add_delete_file", "self manifest_entry partition_key", "scan/iceberg.py"
    ),
    Relied(
        "pyiceberg.table.delete_file_index.DeleteFileIndex.for_data_file", "self seq_num data_file partition_key", "scan/iceberg.py"
    ),
    Relied("pyiceberg.table.deletion_vector.deletion_vectors_from_puffin_file", "puffin_file", "scan/deletes.py"),
    Relied("pyiceberg.table.puffin.PuffinFile", "puffin", "scan/deletes.py"),
]

#: Private attributes of pyiceberg's objects, by the file that reads them; what they have to be is in the tests below.
ATTRIBUTES = {
    "tables/iceberg/conflicts.py": {"_data"},
    "tables/iceberg/creation.py": {"_table"},
    "tables/iceberg/manifest/staged.py": {"_meta", "_with_partition"},
    "tables/iceberg/matching.py": {"_data"},
    "tables/iceberg/rolling.py": {"_parquet_writer_kwargs", "_writer"},
}

#: Public in spite of its name, of any named tuple.
REPLACE = "_replace"

PACKAGE = Path(airflow_ckpt_provider.__file__).parent


def named(name: str) -> object:
    """What a dotted name stands for, looked for in its longest part that is a module."""
    parts = name.split(".")
    found: object = importlib.import_module(parts[0])
    for at, part in enumerate(parts[1:], start=1):
        if inspect.ismodule(found) and not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[: at + 1]))
            except ModuleNotFoundError as error:
                raise AttributeError(str(error)) from error
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("relied", RELIED, ids=lambda relied: relied.name)
def test_what_is_relied_on_of_pyiceberg_is_there_and_takes_what_it_is_given(relied):
    advice = f"{relied.used_in} relies on pyiceberg's {relied.name}({', '.join(relied.takes.split())})"
    try:
        found = named(relied.name)
    except AttributeError as error:
        raise AssertionError(f"{advice}, which is not there any more ({error}). Find what took its place.") from error
    takes = list(inspect.signature(found).parameters)
    assert takes == relied.takes.split(), f"{advice}, which takes ({', '.join(takes)}) now. Call it so, or do without it."
    for file in relied.used_in.split():
        assert relied.name.rpartition(".")[2] in (PACKAGE / file).read_text(), (
            f"{file} does not use {relied.name}: correct this list."
        )


def test_no_file_uses_a_private_name_of_pyiceberg_that_is_not_listed_here():
    found = {str(path.relative_to(PACKAGE)): private_names(path) for path in PACKAGE.rglob("*.py")}
    listed_here = {file: set(names) for file, names in ATTRIBUTES.items()}
    for relied in RELIED:
        private = {part for part in relied.name.split(".") if part.startswith("_")}
        for file in relied.used_in.split() if private else ():
            listed_here.setdefault(file, set()).update(private)
    assert {file: names for file, names in found.items() if names} == listed_here


def private_names(path: Path) -> set[str]:
    """Private names that a file imports from pyiceberg, reads of others' objects, or defines anew in a class of pyiceberg's."""
    tree, names, bases = ast.parse(path.read_text()), set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pyiceberg":
            bases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names |= {alias.name for alias in node.names if alias.name.startswith("_")}
    if not bases:
        return names
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and node.attr != REPLACE
        ):
            own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            names |= set() if own else {node.attr}
        if isinstance(node, ast.ClassDef):
            theirs = [named(bases[base.id]) for base in node.bases if isinstance(base, ast.Name) and base.id in bases]
            methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef) and not part.name.startswith("__")}
            names |= {name for name in methods if name.startswith("_") and any(hasattr(base, name) for base in theirs)}
    return names


def test_a_record_holds_its_values_in_order():
    """tables/iceberg/matching.py and conflicts.py take partitions apart by ``Record._data``."""
    assert list(Record(1, None, "a")._data) == [1, None, "a"]


def test_a_data_file_takes_its_fields_in_the_order_of_version_2():
    """tables/iceberg/manifest/entries.py makes data files of what it has read, by position."""
    names = [field.name for field in DATA_FILE_TYPE[2].fields]
    file = DataFile(*names)
    assert [getattr(file, name) for name in names] == names


def test_a_sequence_number_that_is_to_be_assigned_is_minus_one():
    """tables/iceberg/manifest/staged.py and rewriting.py leave sequence numbers to the manifest list."""
    assert UNASSIGNED_SEQ == -1


def test_the_strict_visitor_has_counts_of_nulls_and_of_nan_by_field():
    """tables/iceberg/matching.py asks them for what it does not know to be none."""
    file = DataFile.from_args(record_count=1, value_counts={1: 1}, null_value_counts={1: 0}, nan_value_counts={1: 1})
    visitor = _StrictMetricsEvaluationVisitor(SCHEMA.as_struct(), file)
    assert (visitor.null_counts, visitor.nan_counts) == ({1: 0}, {1: 1})


def test_a_table_to_be_stands_in_its_transaction(tmp_path):
    """tables/iceberg/creation.py takes the table out of ``Transaction._table`` and commits it itself."""
    catalog = World(tmp_path).catalog
    catalog.create_namespace_if_not_exists("shop")
    table = catalog.create_table_transaction("shop.new", SCHEMA)._table
    assert table.name() == ("shop", "new")
    assert table.schema().column_names == SCHEMA.column_names
    assert not catalog.table_exists("shop.new")


def test_the_metadata_of_a_manifest_is_a_property_of_its_writer_that_may_be_added_to():
    """tables/iceberg/manifest/staged.py adds a digest of what a manifest says of its files."""
    assert isinstance(inspect.getattr_static(ManifestWriterV2, "_meta"), property)


def test_a_partition_field_that_was_dropped_is_required_if_its_column_is():
    """tables/iceberg/manifest/staged.py makes it optional. Once this fails, the library does so itself."""
    spec = PartitionSpec(PartitionField(1, 1000, VoidTransform(), "dropped"))
    assert spec.partition_type(SCHEMA).fields[0].required


def test_the_writer_of_parquet_has_its_settings_and_the_metadata_of_what_it_wrote(tmp_path):
    """tables/iceberg/rolling.py sets the dictionary columns of each file, and takes its statistics where pyiceberg fails to."""
    output = PyArrowFileIO().new_output(f"file://{tmp_path}/1.parquet")
    writer = FileFormatFactory.get(FileFormat.PARQUET).create_writer(output, SCHEMA, {})
    writer._parquet_writer_kwargs["use_dictionary"] = ["name"]
    writer.write(pa.table({"id": [1, 2], "name": ["a", None]}, schema=arrow_schema(SCHEMA)))
    statistics = writer.close()
    metadata = writer._writer.writer.metadata
    encodings = {metadata.row_group(0).column(at).path_in_schema: metadata.row_group(0).column(at).encodings for at in range(2)}
    assert ["RLE_DICTIONARY" in encodings[name] for name in SCHEMA.column_names] == [False, True]
    assert statistics.to_serialized_dict()["record_count"] == metadata.num_rows == 2


def test_doubles_are_read_by_a_reader_that_can_be_replaced_because_the_fast_decoder_cuts_them():
    """scan/doubles.py reads them itself. Once the first line fails, the library does it right, and that file can go."""
    assert CythonBinaryDecoder(struct.pack("<d", 0.1)).read_double() == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    read_exactly()
    assert DoubleReader().read(CythonBinaryDecoder(struct.pack("<d", 0.1))) == 0.1


def test_text_is_cut_by_a_mode_that_is_called_truncate():
    """tables/iceberg/manifest/cutting.py looks for the columns whose bounds are cut."""
    assert {mode.name for mode in MetricModeTypes} >= {"TRUNCATE", "FULL"}


def test_rest_catalogs_are_opened_by_a_function_that_can_be_replaced(monkeypatch):
    """tables/catalogs.py gives their requests time-outs while a catalog is opened."""
    monkeypatch.setitem(AVAILABLE_CATALOGS, CatalogType.REST, lambda name, properties: (name, properties["uri"]))
    assert load_catalog("lake", type="rest", uri="http://127.0.0.1:1") == ("lake", "http://127.0.0.1:1")


def test_files_of_pyarrow_are_opened_by_scheme_and_host(tmp_path):
    """tables/iceberg/orphans.py lists folders by the file system that pyiceberg uses."""
    io = PyArrowFileIO()
    assert io.parse_location("s3://bucket/a/b", {}) == ("s3", "bucket", "bucket/a/b")
    assert io.parse_location(f"file://{tmp_path}", {}) == ("file", "", str(tmp_path))
    assert io.fs_by_scheme("file", None).get_file_info(str(tmp_path)).type.name == "Directory"

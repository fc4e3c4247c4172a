"""The package as Airflow discovers it."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import tomllib
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from packaging.requirements import Requirement

import airflow_ckpt_provider
from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.get_provider_info import get_provider_info
from airflow_ckpt_provider.hooks.configuration import commit_expected_within
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.transform import CheckpointedTransformOperator
from airflow_ckpt_provider.sources import Files


def test_airflow_finds_the_provider_by_its_entry_point():
    (entry,) = [
        one
        for one in importlib.metadata.entry_points(group="apache_airflow_provider")
        if one.dist is not None and one.dist.name == "airflow-provider-ckpt"
    ]
    assert entry.load()() == get_provider_info()


ROOT = Path(airflow_ckpt_provider.__file__).parents[1]
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def test_the_metadata_is_valid_by_airflows_own_schema():
    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_every_module_and_class_that_the_metadata_names_can_be_imported():
    info = get_provider_info()
    for kind in ("operators", "sensors", "triggers", "hooks"):
        for group in info[kind]:
            for name in group["python-modules"]:
                importlib.import_module(name)
    for decorator in info["task-decorators"]:
        module, _, name = decorator["class-name"].rpartition(".")
        assert name == decorator["name"]
        assert callable(getattr(importlib.import_module(module), name))
    for link in info["extra-links"]:
        module, _, name = link.rpartition(".")
        assert getattr(importlib.import_module(module), name)().name
    for connection in info["connection-types"]:
        module, _, name = connection["hook-class-name"].rpartition(".")
        hook = getattr(importlib.import_module(module), name)
        assert hook.conn_type == connection["connection-type"]


@pytest.mark.parametrize(
    ("option", "value", "wrong"),
    [("on_change", "restart", "rewrite"), ("if_empty", "skip", "ignore")],
    ids=["on_change", "if_empty"],
)
@pytest.mark.parametrize("stage", [CheckpointedIcebergWriteOperator, CheckpointedTransformOperator], ids=["write", "transform"])
def test_a_stage_that_says_nothing_does_what_the_configuration_says(monkeypatch, stage, option, value, wrong):
    what = {"task_id": "stage", "source": Files("file:///in/*.parquet"), "transform": "dags.clean:clean"}
    what |= {"table": "shop.orders"} if stage is CheckpointedIcebergWriteOperator else {}
    default = get_provider_info()["config"]["checkpoints"]["options"][option]["default"]
    assert getattr(stage(**what), option) == default
    monkeypatch.setenv(f"AIRFLOW__CHECKPOINTS__{option.upper()}", value)
    assert getattr(stage(**what), option) == value
    assert getattr(stage(**what | {option: "fail"}), option) == "fail"
    monkeypatch.setenv(f"AIRFLOW__CHECKPOINTS__{option.upper()}", wrong)
    with pytest.raises(InvalidInputError, match=f"{option}='{wrong}'"):
        stage(**what)


def test_the_page_waits_for_a_commit_as_long_as_the_configuration_says(monkeypatch):
    assert commit_expected_within() == timedelta(hours=1)
    monkeypatch.setenv("AIRFLOW__CHECKPOINTS__COMMIT_EXPECTED_WITHIN", "2d")
    assert commit_expected_within() == timedelta(days=2)
    monkeypatch.setenv("AIRFLOW__CHECKPOINTS__COMMIT_EXPECTED_WITHIN", "soon")
    with pytest.raises(InvalidInputError, match="commit_expected_within = 'soon'"):
        commit_expected_within()


def test_the_distribution_and_the_package_have_one_version():
    assert importlib.metadata.version("airflow-provider-ckpt") == airflow_ckpt_provider.__version__


def test_the_oldest_airflow_that_is_taken_is_the_one_that_the_tests_run_on():
    requirements = map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    (airflow,) = [one for one in requirements if one.name == "apache-airflow"]
    assert f">={importlib.metadata.version('apache-airflow')}" in str(airflow.specifier).split(",")


def test_the_provider_refers_to_no_page_that_is_not_its_own():
    assert "external-doc-url" not in get_provider_info()["integrations"][0]


def test_there_are_snippets_in_the_readme():
    assert len(SNIPPETS) >= 4


@pytest.mark.airflow
@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_every_python_snippet_of_the_readme_is_a_dag_file_as_it_stands(airflow_database, tmp_path, snippet):
    from airflow.dag_processing.dagbag import DagBag

    (tmp_path / "snippet.py").write_text(snippet)
    bag = DagBag(dag_folder=str(tmp_path))
    assert bag.import_errors == {}
    (dag,) = bag.dags.values()
    assert dag.task_ids

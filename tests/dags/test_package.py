"""The package as Airflow discovers it."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from importlib.resources import files

import jsonschema

import airflow_ckpt_provider
from airflow_ckpt_provider.get_provider_info import get_provider_info


def test_airflow_finds_the_provider_by_its_entry_point():
    (entry,) = [
        one
        for one in importlib.metadata.entry_points(group="apache_airflow_provider")
        if one.dist is not None and one.dist.name == "airflow-provider-ckpt"
    ]
    assert entry.load()() == get_provider_info()


def test_the_metadata_is_valid_by_airflows_own_schema():
    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_every_module_and_class_that_the_metadata_names_can_be_imported():
    info = get_provider_info()
    for kind in ("operators", "sensors", "triggers", "hooks"):
        for group in info[kind]:
            for name in group["python-modules"]:
                importlib.import_module(name)
    for connection in info["connection-types"]:
        module, _, name = connection["hook-class-name"].rpartition(".")
        hook = getattr(importlib.import_module(module), name)
        assert hook.conn_type == connection["connection-type"]


def test_the_distribution_and_the_package_have_one_version():
    assert importlib.metadata.version("airflow-provider-ckpt") == airflow_ckpt_provider.__version__

"""What Airflow asks a provider about itself. Strings only: importing this costs nothing."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The provider's metadata, by the schema ``provider_info.schema.json`` of Airflow."""
    return {
        "package-name": "airflow-provider-ckpt",
        "name": "Checkpointed writes",
        "description": "Checkpointed, exactly-once Spark writes into Apache Iceberg and Lance: a retry recovers what was staged.",
        "integrations": [
            {
                "integration-name": "Checkpointed writes",
                "tags": ["software"],
            }
        ],
        "cli": ["airflow_ckpt_provider.cli.definition.checkpoints_commands"],
        "operators": [
            {
                "integration-name": "Checkpointed writes",
                "python-modules": [
                    "airflow_ckpt_provider.operators.iceberg",
                    "airflow_ckpt_provider.operators.lance",
                    "airflow_ckpt_provider.operators.transform",
                    "airflow_ckpt_provider.operators.commit",
                    "airflow_ckpt_provider.operators.cleanup",
                    "airflow_ckpt_provider.operators.undo",
                ],
            }
        ],
        "extra-links": [
            "airflow_ckpt_provider.operators.links.CheckpointLink",
            "airflow_ckpt_provider.operators.links.SparkUiLink",
        ],
        "sensors": [{"integration-name": "Checkpointed writes", "python-modules": ["airflow_ckpt_provider.sensors.checkpoint"]}],
        "triggers": [{"integration-name": "Checkpointed writes", "python-modules": ["airflow_ckpt_provider.triggers.checkpoint"]}],
        "hooks": [{"integration-name": "Checkpointed writes", "python-modules": ["airflow_ckpt_provider.hooks.checkpoint"]}],
        "task-decorators": [
            {"name": "checkpointed_iceberg", "class-name": "airflow_ckpt_provider.decorators.iceberg.checkpointed_iceberg"},
            {"name": "checkpointed_lance", "class-name": "airflow_ckpt_provider.decorators.lance.checkpointed_lance"},
        ],
        "asset-uris": [
            {"schemes": ["iceberg"], "handler": "airflow_ckpt_provider.hooks.asset_uris.iceberg_asset"},
            {"schemes": ["lance"], "handler": "airflow_ckpt_provider.hooks.asset_uris.lance_asset"},
        ],
        "connection-types": [
            {
                "connection-type": "checkpoint",
                "hook-name": "Checkpoint store",
                "hook-class-name": "airflow_ckpt_provider.hooks.checkpoint.CheckpointHook",
                "conn-fields": {
                    "signing_secret": {
                        "label": "Signing key",
                        "description": "Signs all documents of the store. At least 32 characters, such as of: openssl rand -hex 32",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    }
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema"],
                    "relabeling": {"host": "Store URI", "login": "Access key", "password": "Secret key"},
                    "placeholders": {
                        "host": "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder",
                        "extra": '{"region": "eu-central-1"}',
                    },
                },
            }
        ],
    }

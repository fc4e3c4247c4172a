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
        "config": {
            "checkpoints": {
                "description": "Checkpointed writes: what holds where a DAG or a command says nothing.",
                "options": {
                    "on_change": {
                        "description": (
                            "What a stage does if its key belongs to a write with another table, source, mode or transform: fail, "
                            "restart, or continue."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "continue",
                        "default": "fail",
                    },
                    "if_empty": {
                        "description": "What becomes of a stage that has no rows: succeed, skip, or fail.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "skip",
                        "default": "succeed",
                    },
                    "older_than": {
                        "description": (
                            "How long nothing must have been put of a write before a sweep removes its records: 12h, 14d, 2w. For "
                            "airflow checkpoints clean, and for a CheckpointCleanupOperator that names no checkpoint. Longer than "
                            "any stage takes. Empty: each sweep has to say."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "14d",
                        "default": "",
                    },
                    "commit_expected_within": {
                        "description": (
                            "How long a write may be sealed before the page Checkpoints points out that its commit is missing: 1h, "
                            "2d."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "12h",
                        "default": "1h",
                    },
                },
            },
        },
        "connection-types": [
            {
                "connection-type": "checkpoint",
                "hook-name": "Checkpoint store",
                "hook-class-name": "airflow_ckpt_provider.hooks.checkpoint.CheckpointHook",
                "conn-fields": {
                    "region": {
                        "label": "Region",
                        "description": "Of the bucket, such as eu-central-1.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "endpoint": {
                        "label": "Endpoint",
                        "description": "Of a store that speaks S3 and is not Amazon's, such as https://minio.example.com:9000",
                        "schema": {"type": ["string", "null"], "format": "uri"},
                    },
                    "allow_http": {
                        "label": "Allow HTTP",
                        "description": "Take an endpoint that is not encrypted.",
                        "schema": {"type": ["boolean", "null"], "default": False},
                    },
                    "session_token": {
                        "label": "Session token",
                        "description": "Of temporary credentials.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "google_application_credentials": {
                        "label": "Google credentials",
                        "description": "Path of a key file on the workers.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "signing_secret": {
                        "label": "Signing key",
                        "description": "Signs all documents of the store. At least 32 characters, such as of: openssl rand -hex 32",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema"],
                    "relabeling": {"host": "Store URI", "login": "Access key", "password": "Secret key"},
                    "placeholders": {
                        "host": "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder",
                        "extra": '{"virtual_hosted_style_request": true}',
                    },
                },
            }
        ],
    }

"""What Airflow shows of a source under "Rendered Templates": what the user has given, with its templates rendered or not.

Airflow calls ``serialize`` of whatever is in a templated field, and writes the text of any other object, also when it stores a DAG:
nothing is looked at or resolved here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import JsonObject


def shown(kind: str, read: object, **given: object) -> JsonObject:
    """A source for a reader.

    :param kind: its class.
    :param read: what it reads.
    :param given: what else was said of it; None, False and empty values were not.
    """
    return {kind: read} | {name: value for name, value in given.items() if value or (value == 0 and value is not False)}


def keys_of(pointers: object) -> object:
    """Checkpoint references by their keys; an XCom that is not resolved yet as it is."""
    if isinstance(pointers, dict):
        return pointers.get("idempotence_key", pointers)
    if isinstance(pointers, str) or not hasattr(pointers, "__iter__") or hasattr(pointers, "resolve"):
        return pointers
    return [keys_of(pointer) for pointer in pointers]

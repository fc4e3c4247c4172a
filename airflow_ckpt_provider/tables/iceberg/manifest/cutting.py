"""Upper bounds of text that is cut to some length: the last character is raised, past those that are no characters.

The library raises U+D7FF to U+D800, the first of the surrogates, which no UTF-8 text can hold, and then fails.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.typedef import Properties

#: The last character before the surrogates, the first behind them, and the last of all.
_BEFORE, _BEHIND, _LAST = 0xD7FF, 0xE000, 0x10FFFF


def cut_upper(text: str, length: int) -> str | None:
    """A text of at most ``length`` characters that is not below ``text``; None if there is none."""
    if len(text) <= length:
        return text
    for end in range(length, 0, -1):
        last = ord(text[end - 1])
        if last < _LAST:
            return text[: end - 1] + chr(_BEHIND if last == _BEFORE else last + 1)
    return None


def facts_with_cut_bounds(metadata: Any, schema: Schema, properties: Properties) -> dict[str, Any]:  # noqa: ANN401 - of Parquet
    """What a manifest says of a Parquet file, with bounds of text that are cut here.

    :param metadata: the file's own.
    :param schema: of the file.
    :param properties: of the table.
    """
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.types import StringType

    plan = compute_statistics_plan(schema, properties)
    lengths = {
        number: column.mode.length
        for number, column in plan.items()
        if isinstance(column.iceberg_type, StringType) and column.mode.type == MetricModeTypes.TRUNCATE and column.mode.length
    }
    for number in lengths:
        plan[number] = dataclasses.replace(plan[number], mode=MetricsMode(MetricModeTypes.FULL))
    statistics = data_file_statistics_from_parquet_metadata(metadata, plan, parquet_path_to_id_mapping(schema))
    facts = statistics.to_serialized_dict()
    for number, length in lengths.items():
        lower, upper = facts["lower_bounds"].get(number), facts["upper_bounds"].pop(number, None)
        if lower is not None:
            facts["lower_bounds"][number] = lower.decode()[:length].encode()
        cut = None if upper is None else cut_upper(upper.decode(), length)
        if cut is not None:
            facts["upper_bounds"][number] = cut.encode()
    return facts

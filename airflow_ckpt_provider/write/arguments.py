"""What the stage is told about its mode: refused when the DAG is parsed where it cannot work, read again after templating."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.exceptions import InvalidInputError
from airflow_ckpt_provider.sources import Source
from airflow_ckpt_provider.sources.protocol import StoredSource
from airflow_ckpt_provider.sources.transform import not_of_rows
from airflow_ckpt_provider.tables.parameters import given, names_in, text
from airflow_ckpt_provider.transforms.names import name_of, parse_name
from airflow_ckpt_provider.transforms.rows import Map
from airflow_ckpt_provider.write.pieces import SaveEvery
from airflow_ckpt_provider.write.rejecting import OnError

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.documents import JsonObject
    from airflow_ckpt_provider.tables.format import TableFormat


def parameters_in(table_format: TableFormat) -> tuple[str, ...]:
    """Names of the parameters of all modes of a format: arguments of its operator, all of them templated."""
    return names_in(table_format.parameters.values())


def parameters_of(operator: Any, table_format: TableFormat) -> JsonObject:  # noqa: ANN401 - it has all parameters as attributes
    """What the user set, for the mode; called again once templates are rendered.

    :raises InvalidInputError: for a mode that does not exist, or that does not take what it is given.
    """
    mode = str(operator.mode)
    if "{{" in mode:
        return {}
    return given(table_format.parameters, mode, {name: getattr(operator, name) for name in parameters_in(table_format)})


def require_policies(on_change: str, on_rerun: str, if_empty: str, missing_columns: str | None) -> None:
    """Refuse policies that do not exist.

    :raises InvalidInputError: naming those that do.
    """
    if on_change not in {"fail", "restart", "continue"}:
        raise InvalidInputError(f"on_change={on_change!r}: the values are 'fail', 'restart' and 'continue'.")
    if on_rerun not in {"reuse", "replace"}:
        raise InvalidInputError(f"on_rerun={on_rerun!r}: the values are 'reuse' and 'replace'.")
    if if_empty not in {"succeed", "skip", "fail"}:
        raise InvalidInputError(f"if_empty={if_empty!r}: the values are 'succeed', 'skip' and 'fail'.")
    if missing_columns not in {None, "null", "fail"}:
        raise InvalidInputError(f"missing_columns={missing_columns!r}: the values are None, 'null' and 'fail'.")


def require_save_every(value: object) -> SaveEvery:
    """What a user says of when a piece of a split is saved.

    :param value: None for the default, by which nothing is sorted only so that it can be saved.
    :raises InvalidInputError: if it is no number of rows and no time.
    """
    if value is None:
        return SaveEvery()
    if isinstance(value, timedelta) and value > timedelta(0):
        return SaveEvery(seconds=value.total_seconds(), buckets=True)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return SaveEvery(rows=value, seconds=None, buckets=True)
    raise InvalidInputError(
        f"save_every={value!r} is neither a number of input rows, such as 1000, nor a time, such as timedelta(seconds=30)."
    )


def require_on_error(on_error: str, max_errors: object, transform: object) -> OnError:
    """What a user says of rows at which the transform fails.

    :raises InvalidInputError: if it cannot be done.
    """
    if on_error not in {"fail", "skip", "retry"}:
        raise InvalidInputError(f"on_error={on_error!r}: the values are 'fail', 'skip' and 'retry'.")
    if max_errors is not None and on_error == "fail":
        raise InvalidInputError(f"max_errors={max_errors!r} belongs to on_error='skip' or 'retry', and on_error is 'fail'.")
    is_number = isinstance(max_errors, int) and not isinstance(max_errors, bool) and max_errors >= 0
    if not (max_errors is None or is_number or (isinstance(max_errors, float) and 0 < max_errors < 1)):
        raise InvalidInputError(
            f"max_errors={max_errors!r} is neither a number of rows, such as 100, nor a share of them, such as 0.01."
        )
    # A function that is given by its name is imported by the worker.
    if on_error != "fail" and not isinstance(transform, Map | str):
        raise not_of_rows(name_of(transform) if callable(transform) else repr(transform))
    return OnError(on_error, max_errors)  # type: ignore[arg-type]  # both were looked at


def require_transform(transform: object) -> None:
    """Refuse what is no transform.

    :raises InvalidInputError: saying what there may be.
    """
    if isinstance(transform, str):
        parse_name(transform)
    elif transform is not None and not callable(transform):
        raise InvalidInputError(f"transform={transform!r} is neither a function nor a name like 'package.module:function'.")


def require_version(transform: object, version: object) -> str | None:
    """What is said in place of the transform's fingerprint, if anything is.

    :raises InvalidInputError: if it is no text, or there is no transform.
    """
    if version is None or hasattr(version, "resolve"):
        # An XCom is known at run time only.
        return None
    if transform is None:
        raise InvalidInputError(f"transform_version={version!r} belongs to a transform, and there is none.")
    return text("transform_version", version)


def require_usable(source: object, transform: object) -> None:
    """Refuse what is no source or no transform when the DAG is parsed. References to XComs are known at run time only.

    :raises InvalidInputError: saying what there may be.
    """
    require_transform(transform)
    if not isinstance(source, str | Source | StoredSource) and not hasattr(source, "resolve"):
        raise InvalidInputError(f"source={source!r} is neither a source, such as Files(...), nor a path or glob.")

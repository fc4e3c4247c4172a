"""The fields that a class declares, in the canonical form of its code."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING

from airflow_ckpt_provider.transforms.values import Held, leaf

if TYPE_CHECKING:
    from airflow_ckpt_provider.transforms.values import Form


def fields_of(kind: type) -> Form:
    """Fields that a class declares, where something reads them."""
    if dataclasses.is_dataclass(kind) and "__dataclass_params__" in vars(kind):
        yield repr(kind.__dataclass_params__).encode()  # type: ignore[attr-defined]
        for field in dataclasses.fields(kind):
            yield field.name.encode()
            yield leaf((field.init, field.repr, field.hash, field.compare, bool(field.kw_only)))
            for label in ("default", "default_factory"):
                value = getattr(field, label)
                if value is not dataclasses.MISSING:
                    yield Held(field.name, value)
    if kind.__bases__ == (object,) and not dataclasses.is_dataclass(kind) and "__attrs_attrs__" not in vars(kind):
        return
    for name, annotation in _annotations(kind).items():
        yield name.encode()
        yield annotation.encode()


def _annotations(kind: type) -> dict[str, str]:
    """Annotations of a class in their order, as texts without the names of modules."""
    try:
        said_of = inspect.get_annotations(kind)
    except Exception:  # noqa: BLE001 - names that are not there, in versions of Python that look at annotations late
        return {}
    return {
        name: said if isinstance(said, str) else said.__qualname__ if isinstance(said, type) else repr(said).rpartition(".")[2]
        for name, said in said_of.items()
    }

"""The modes that add rows and touch none: ``append``, and ``create``, whose dataset begins with them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from airflow_ckpt_provider.tables.lance.modes.base import LanceMode
from airflow_ckpt_provider.tables.lance.schema import LEAVES_ONLY, STORAGE_VERSION
from airflow_ckpt_provider.tables.parameters import ModeParameters, of_creation


class CreateParameters(ModeParameters, frozen=True, kw_only=True):
    """What the dataset is to be."""

    storage_version: Annotated[str, Meta(description="version of the file format")] = STORAGE_VERSION
    stable_row_ids: Annotated[bool, Meta(description="whether rows keep their ids when they are moved")] = False

    def problem(self) -> str | None:
        """A version that is not written."""
        if self.storage_version in LEAVES_ONLY:
            return None
        return f"storage_version={self.storage_version!r}: the versions are {', '.join(LEAVES_ONLY)}."


class MayCreateParameters(ModeParameters, frozen=True, kw_only=True):
    """What the dataset is to be, if there is none."""

    storage_version: Annotated[str | None, Meta(description="version of the file format")] = None
    stable_row_ids: Annotated[bool | None, Meta(description="whether rows keep their ids when they are moved")] = None
    create_if_missing: Annotated[bool | None, Meta(description="whether to create the dataset, if there is none")] = None

    def problem(self) -> str | None:
        """A version that is not written, or what a dataset is to be that is not to be created."""
        if self.storage_version is not None:
            wrong = CreateParameters(storage_version=self.storage_version).problem()
            if wrong is not None:
                return wrong
        return of_creation(self, ("storage_version", "stable_row_ids"), is_asked=bool(self.create_if_missing))


class Append(LanceMode):
    """Rows are added."""

    Parameters = MayCreateParameters


class Create(LanceMode):
    """The dataset comes into being with its rows."""

    Parameters = CreateParameters
    creates = True
    removes_rows = True
    takes_increments = False

"""What a request binds a generation of its key to: the header of a new one, and the one that the newest is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_ckpt_provider.checkpoint.checkpoint import now
from airflow_ckpt_provider.checkpoint.documents import Header, code_of, fingerprint

if TYPE_CHECKING:
    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.checkpoint.documents import TableBinding
    from airflow_ckpt_provider.tables.table import Table
    from airflow_ckpt_provider.write.request import WriteRequest


class Headers:
    """The headers of one request, made before anything of the user's runs, which may change what it uses, or any session starts.

    :param table: the table to write to.
    """

    def __init__(self, table: Table, request: WriteRequest) -> None:
        self._table = table
        self._request = request
        self._described = request.source.describe()
        transform, version = request.transform, request.transform_version
        self._fingerprint = "" if transform is None or version is not None else transform.fingerprint
        #: Digest of the transform's code as this attempt has it; see ``Header.code``.
        self.code = code_of(self._fingerprint, version)

    def is_same_table(self, checkpoint: Checkpoint) -> bool:
        """Whether a generation goes into the table of the request, by its name."""
        return checkpoint.header.table.identifier == self._table.identifier

    def wanted(self, latest: Checkpoint) -> Header:
        """What the request binds the newest generation to."""
        request, pinned = self._request, latest.header.table
        creates = request.mode_on(self._table).creates
        if (creates or request.creates_if_missing) and pinned.creation is not None:
            # Not created yet, or by this very write: its identity is the pinned one.
            binding = msgspec.structs.replace(pinned, identifier=self._table.identifier, branch=self._table.branch)
        elif creates and not self.is_same_table(latest):
            binding = msgspec.structs.replace(pinned, identifier=self._table.identifier)
        else:
            binding = self._table.binding()
        return self.of(latest.header.generation, binding, latest.header.replaces)

    def of(self, generation: int, binding: TableBinding, replaces: int | None) -> Header:
        """The header of a generation that is bound to a table in this way."""
        request = self._request
        return Header(
            key=request.key.value,
            generation=generation,
            created_at=now(),
            table=binding,
            mode=request.mode,
            parameters=request.parameters_on(self._table, binding),
            source=self._described,
            source_fingerprint=fingerprint(self._described),
            transform=request.transform.name if request.transform else "",
            transform_fingerprint=self._fingerprint,
            connections=request.connections,
            origin=request.origin,
            restart_token=request.restart_token,
            replaces=replaces,
            transform_version=request.transform_version,
            transform_kind=request.transform.kind if request.transform else "",
        )

"""A small real world around a Lance dataset: dataset, store and input files in one folder, and writes without Spark.

Lance is used in this process, so nothing may be forked from it: runs that are killed or race have processes of their own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ckpt_provider.checkpoint.documents import Connections
from airflow_ckpt_provider.checkpoint.location import StorageLocation
from airflow_ckpt_provider.checkpoint.store import CheckpointStore
from airflow_ckpt_provider.tables.lance.table import DatasetTable
from airflow_ckpt_provider.tables.summary import GROUP, KEY
from support.world import World, rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lance import LanceDataset

    from airflow_ckpt_provider.write.request import WriteRequest

#: First id of rows that other writers append: apart from all ids of checkpoints.
FOREIGN = 1_000_000


class Version(NamedTuple):
    """One version of a dataset, as its transaction says."""

    number: int
    properties: dict[str, str]

    @property
    def group(self) -> str | None:
        return self.properties.get(GROUP)

    @property
    def key(self) -> str | None:
        return self.properties.get(KEY)


class LanceWorld(World):
    """One folder with everything in it; the dataset, and the store, may be in object storage.

    :param root: an empty folder, or the one of a world that is there already.
    :param uri: of the dataset; kept in the folder, with what follows, for whoever opens the world later.
    :param options: of the storage of the dataset, and of the store if that has a URI.
    :param store: URI of the store.
    """

    def __init__(
        self, root: Path, uri: str | None = None, options: Mapping[str, str] | None = None, store: str | None = None
    ) -> None:
        super().__init__(root)
        kept = root / "dataset.json"
        if uri is not None:
            kept.write_text(json.dumps({"uri": uri, "options": dict(options or {}), "store": store}))
        found = json.loads(kept.read_text()) if kept.exists() else {"uri": str(root / "orders.lance"), "options": {}, "store": None}
        self.uri: str = found["uri"]
        self.options: dict[str, str] = found["options"]
        if found["store"] is not None:
            self.store = CheckpointStore.at(found["store"], **self.options)

    # -- the dataset, as anybody with the library sees it -----------------------------------------------------------------

    @property
    def dataset(self) -> LanceDataset:
        """Its last version, opened anew."""
        import lance

        return lance.dataset(self.uri, storage_options=self.options or None)

    @property
    def exists(self) -> bool:
        return self._opened() is not None

    def _opened(self) -> LanceDataset | None:
        """The dataset if there is one."""
        try:
            return self.dataset
        except ValueError:
            return None

    def create_dataset(self, start: int = FOREIGN, count: int = 5, **settings: Any) -> list[int]:
        """Make the dataset with somebody else's rows; their ids. Without rows it has no fragments."""
        import lance

        table = rows(start, max(count, 1)).slice(0, count)
        lance.write_dataset(table, self.uri, mode="create", storage_options=self.options or None, **settings)
        return list(range(start, start + count))

    def foreign_append(self, start: int = FOREIGN + 1000, count: int = 5) -> list[int]:
        """Append rows as a writer does who knows nothing of checkpoints; their ids."""
        import lance

        lance.write_dataset(rows(start, count), self.uri, mode="append", storage_options=self.options or None)
        return list(range(start, start + count))

    def table_rows(self) -> list[dict[str, Any]]:
        """All rows, by id."""
        return sorted(self.dataset.to_table().to_pylist(), key=lambda row: row["id"])

    def ids(self, name: str = "") -> list[int]:
        """All ids in the dataset, sorted; one that is there twice is listed twice."""
        return sorted(self.dataset.to_table(columns=["id"])["id"].to_pylist())

    def identities(self) -> dict[int, tuple[int, int]]:
        """Row id of each row, and the version that it was made in, by its id."""
        table = self.dataset.scanner(columns=["id", "_row_created_at_version"], with_row_id=True).to_table().to_pydict()
        rows = zip(table["_rowid"], table["_row_created_at_version"], strict=True)
        return dict(zip(table["id"], rows, strict=True))

    def versions(self) -> list[Version]:
        """All versions that are there, oldest first; none if there is no dataset."""
        dataset = self._opened()
        if dataset is None:
            return []
        numbers = sorted(one["version"] for one in dataset.versions())
        found = [(number, dataset.read_transaction(number)) for number in numbers]
        return [Version(number, (one.transaction_properties if one is not None else None) or {}) for number, one in found]

    def own_versions(self) -> list[Version]:
        """Those of them that carry a key of ours."""
        return [version for version in self.versions() if version.group is not None]

    # -- writes -----------------------------------------------------------------------------------------------------------

    def as_table(self, name: str = "", catalog: object = None) -> DatasetTable:
        return DatasetTable(self.uri, self.options)

    def request(self, key: str = "orders", **changes: Any) -> WriteRequest:
        connections = Connections(table="", spark="spark_default", checkpoint="checkpoint_default")
        return super().request(key, **({"connections": connections} | changes))

    # -- files ------------------------------------------------------------------------------------------------------------

    def data_and_sidecars(self) -> set[str]:
        """What there is of these in the dataset's folder, whoever put it there."""
        folders = ("data", "_checkpoints")
        if "://" not in self.uri:
            return {str(path) for folder in folders for path in (self.root / "orders.lance" / folder).glob("*")}
        import obstore

        objects = StorageLocation(self.uri, self.options).open()
        return {f"{self.uri}/{one['path']}" for folder in folders for chunk in obstore.list(objects, folder) for one in chunk}

    def files_on_disk(self) -> set[str]:
        """Files of checkpoints in the dataset, referenced or not; one that is not finished may be a folder if it is local."""
        return {path for path in self.data_and_sidecars() if "/ckpt-" in path}

    def referenced_files(self, name: str = "") -> set[str]:
        """Data files that the last version refers to."""
        dataset = self._opened()
        return self._files_of(dataset) if dataset is not None else set()

    def ever_referenced_files(self) -> set[str]:
        """Data files that any version refers to."""
        dataset = self._opened()
        if dataset is None:
            return set()
        return set().union(*(self._files_of(dataset.checkout_version(one["version"])) for one in dataset.versions()))

    def _files_of(self, dataset: LanceDataset) -> set[str]:
        return {f"{self.uri}/data/{file.path}" for fragment in dataset.get_fragments() for file in fragment.data_files()}


def expected(*ids: int) -> list[dict[str, Any]]:
    """Rows with these ids, as the input files and other writers have them."""
    return [row for n in sorted(ids) for row in rows(n, 1).to_pylist()]

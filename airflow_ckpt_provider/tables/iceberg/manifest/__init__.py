"""Manifests by hand: staged by executors, merged, read in little memory, and written anew without some of their files.

What pyiceberg 0.12 does well is left to it: the manifest of a split is written by its ``write_manifest``, the manifest list by its
``write_manifest_list``, and readers get its ``DataFile`` and ``ManifestFile``. This package does what it does not:

- **Manifests that were written before their snapshot** (``write_manifest`` here, ``StagedManifest``, ``to_manifest_file``). Their
  entries leave snapshot id and sequence numbers to be inherited from the manifest list; what the list has to say of them is
  remembered as JSON, so that a commit opens none of them. pyiceberg's own appends describe all files in the process that commits.
- **Merging** (``merge``, ``worth_merging``). Entries are copied as the bytes that they are. pyiceberg merges only what snapshots
  have already, and decodes and encodes each entry.
- **Rewriting** (``rewrite_manifest``; ``restore_manifest`` for files of an earlier snapshot that come back). A data file stays
  the bytes that it was, and only the four fields before it are encoded: fields of newer format versions that pyiceberg drops, and
  bounds that it cannot decode, survive.
- **Reading as a stream** (``live_entries``, ``entries_of``, ``data_file``; ``Entries`` for a staged manifest). pyiceberg returns
  the entries of a manifest as one list; what is remembered here does not grow with the manifest.
- **Bounds of text** (``facts_with_cut_bounds``, ``cut_upper``) where pyiceberg raises U+D7FF to what is no character, and fails.

Measured with 20,000 entries of ten columns with statistics, as CPU time per entry: rewriting 57 us against pyiceberg's 250 us, and
2 MB at most against 100 MB, into a file of 0.5 MB against 3.9 MB (pyiceberg writes an Avro block for each entry); merging 2,000
manifests of ten files 24 us against more than 300 us. Reading what a removal asks of an entry takes as long as pyiceberg's reading
does (65 us), with all fields three times as long; it is read so for the memory: 2 MB against 78 MB.

What holds here:

- A staged entry is ADDED, and names neither a snapshot nor a sequence number: it is the same in whatever commit it lands.
- A merged manifest has the entries of its parts, in their order; equal parts make equal bytes, under any race of two seals.
- A rewritten manifest has each live entry of its source once, as existing or as deleted by the new snapshot, with the sequence
  numbers that the entry had; a deleted one of earlier snapshots not at all.
- What a manifest is said to hold is compared with what it holds, and a difference is refused (I2).
- Nothing here knows a table's history, a write or a mode: files are given, and what they say is returned.

The names below are the door. Only ``tables.iceberg.ownership`` goes past it, to ``avro``: it compares the bytes of staged entries
with the files of a write. ``tests/unit/tables/iceberg/test_canary.py`` holds all of this against pyiceberg, which reads the same
and would have written the same; ``test_relied_on.py`` has what is used of it that it promises to nobody. Both say what to do if
they fail.
"""

from airflow_ckpt_provider.tables.iceberg.manifest.avro import Entries, Entry, in_order
from airflow_ckpt_provider.tables.iceberg.manifest.cutting import cut_upper, facts_with_cut_bounds
from airflow_ckpt_provider.tables.iceberg.manifest.entries import ADDED, DELETED, FACTS, data_file, entries_of, live_entries
from airflow_ckpt_provider.tables.iceberg.manifest.merging import merge, worth_merging
from airflow_ckpt_provider.tables.iceberg.manifest.rewriting import restore_manifest, rewrite_manifest
from airflow_ckpt_provider.tables.iceberg.manifest.staged import (
    FACTS_ENTRY,
    FORMAT_VERSION,
    StagedManifest,
    to_manifest_file,
    write_manifest,
)

__all__ = [
    "ADDED",
    "DELETED",
    "FACTS",
    "FACTS_ENTRY",
    "FORMAT_VERSION",
    "Entries",
    "Entry",
    "StagedManifest",
    "cut_upper",
    "data_file",
    "entries_of",
    "facts_with_cut_bounds",
    "in_order",
    "live_entries",
    "merge",
    "restore_manifest",
    "rewrite_manifest",
    "to_manifest_file",
    "worth_merging",
    "write_manifest",
]

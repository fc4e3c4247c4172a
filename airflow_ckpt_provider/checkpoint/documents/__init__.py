"""What is written into the store: strict, versioned JSON documents. No pickle, no secret, no code (I9).

Each document is one JSON object on one line whose last member is the SHA-256 of what precedes it, so that a truncated or
altered object is noticed (I7) instead of being read as something else. Unknown members are refused. Golden files in the
tests fix every byte: changing a document is a breaking change and is noted under "Stored formats" in the changelog.

Decision: one format version for all documents. They are written together by one provider version, and a reader needs to
know only one number to say "this store is newer than I am".
"""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.documents.attempt import Attempt, Code, Continue
from airflow_ckpt_provider.checkpoint.documents.commit import Commit, Group, Member, Members, ReadBy, Tombstone
from airflow_ckpt_provider.checkpoint.documents.header import UNDO, Connections, Header, Origin, TableBinding, code_of
from airflow_ckpt_provider.checkpoint.documents.parts import AnyPinned, JsonObject, Part, Pinned, fingerprint, part_of
from airflow_ckpt_provider.checkpoint.documents.plan import AGAIN, READ, Increment, Plan, Split
from airflow_ckpt_provider.checkpoint.documents.seal import Compact, Seal, contents_of
from airflow_ckpt_provider.checkpoint.documents.staged import Piece, RejectedFile, Staged, StagedFile
from airflow_ckpt_provider.checkpoint.encoding import FORMAT_VERSION, Document, from_json, to_json

__all__ = [
    "AGAIN",
    "FORMAT_VERSION",
    "READ",
    "UNDO",
    "AnyPinned",
    "Attempt",
    "Code",
    "Commit",
    "Compact",
    "Connections",
    "Continue",
    "Document",
    "Group",
    "Header",
    "Increment",
    "JsonObject",
    "Member",
    "Members",
    "Origin",
    "Part",
    "Piece",
    "Pinned",
    "Plan",
    "ReadBy",
    "RejectedFile",
    "Seal",
    "Split",
    "Staged",
    "StagedFile",
    "TableBinding",
    "Tombstone",
    "code_of",
    "contents_of",
    "fingerprint",
    "from_json",
    "part_of",
    "to_json",
]

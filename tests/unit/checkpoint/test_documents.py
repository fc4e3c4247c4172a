"""Stored documents, byte for byte. A failure here means that checkpoints under way would not be readable after an upgrade:
raise the format version and note it under "Stored formats" in the changelog, or leave the document as it was.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
import zstandard
from support.samples import AT, HEADER, PLAN, SAMPLES

from airflow_ckpt_provider.checkpoint import documents
from airflow_ckpt_provider.checkpoint.documents import Document, Member, Part, from_json, to_json
from airflow_ckpt_provider.exceptions import CorruptObjectError

GOLDEN = Path(__file__).parent / "golden"


def signed(body):
    """A whole object around a body, as if a provider had written it."""
    digest = hashlib.sha256(body[:-1]).hexdigest().encode()
    return body[:-1] + b',"sha256":"' + digest + b'"}\n'


def kinds(base):
    return {kind for kind in vars(documents).values() if isinstance(kind, type) and issubclass(kind, base) and kind is not base}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_document_is_written_as_it_always_was(name):
    assert to_json(name, SAMPLES[name]) == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_document_that_was_written_before_is_read(name):
    assert from_json(name, (GOLDEN / name).read_bytes(), type(SAMPLES[name])) == SAMPLES[name]


def test_every_kind_of_document_has_a_golden_file():
    assert {type(sample) for sample in SAMPLES.values()} == kinds(Document)
    assert {path.name for path in GOLDEN.iterdir()} == {*SAMPLES, "plan.json.zst", "signed"}


def test_a_group_of_several_says_who_lists_them_as_it_always_did():
    listed = msgspec.structs.replace(SAMPLES["group.json"], members=(), listed_by=Member(key=HEADER.key, generation=1))
    stored = to_json("group.json", listed)
    assert hashlib.sha256(stored).hexdigest() == "f0dde410dee40b7afded2e268ee6339687b3f3b6d89351548c4507dc556e16d4"
    assert b'"members":[]' in stored
    assert stored.count(b'"listed_by":{"key":"' + HEADER.key.encode() + b'","generation":1}') == 1
    assert from_json("group.json", stored, documents.Group) == listed


def test_a_compressed_plan_is_the_plain_one_in_a_zstd_frame():
    frame = to_json("plan.json.zst", PLAN)
    assert zstandard.ZstdDecompressor().decompress(frame) == (GOLDEN / "plan.json").read_bytes()
    assert from_json("plan.json.zst", (GOLDEN / "plan.json.zst").read_bytes(), documents.Plan) == PLAN


@pytest.mark.parametrize("name", SAMPLES)
def test_a_document_is_one_line_of_json_that_says_what_it_is(name):
    text = (GOLDEN / name).read_bytes()
    facts = msgspec.json.decode(text)
    assert text.count(b"\n") == 1
    assert facts["document"] == name.removesuffix(".json")
    assert facts["format_version"] == 1
    assert list(facts)[-1] == "sha256"


@pytest.mark.parametrize("name", SAMPLES)
def test_an_unknown_member_is_refused(name):
    body = msgspec.json.encode(SAMPLES[name])[:-1] + b',"extra":1}'
    with pytest.raises(CorruptObjectError, match="extra"):
        from_json(name, signed(body), type(SAMPLES[name]))


#: Members that a plain append has no use for.
OPTIONAL = {
    "restart_token", "replaces", "base", "counts", "intermediate", "round", "provisional", "missing", "transform_version",
    "listed_by", "mode", "increment", "restaged", "transform_kind", "computed_by", "request", "input_rows", "rejected", "freed",
    "ids",
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_a_missing_member_is_refused(name):
    facts = msgspec.to_builtins(SAMPLES[name])
    for member in sorted(set(facts) - OPTIONAL):
        body = msgspec.json.encode({key: value for key, value in facts.items() if key != member})
        with pytest.raises(CorruptObjectError, match=name):
            from_json(name, signed(body), type(SAMPLES[name]))


def test_a_member_of_another_type_is_refused():
    facts = msgspec.to_builtins(HEADER) | {"generation": "1"}
    with pytest.raises(CorruptObjectError, match="generation"):
        from_json("header.json", signed(msgspec.json.encode(facts)), documents.Header)


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_that_never_was_is_refused(version):
    facts = msgspec.to_builtins(HEADER) | {"format_version": version}
    with pytest.raises(CorruptObjectError, match=f"version {version}"):
        from_json("header.json", signed(msgspec.json.encode(facts)), documents.Header)


def test_documents_are_immutable_and_closed():
    for kind in kinds(Document) | kinds(Part):
        assert kind.__struct_config__.frozen, kind
        assert kind.__struct_config__.forbid_unknown_fields, kind


def test_no_document_has_a_place_for_code_or_a_secret():
    members = {name for kind in kinds(Document) | kinds(Part) for name in kind.__struct_fields__}
    assert not {name for name in members if any(word in name for word in ("pickle", "secret", "password", "options", "code"))}
    assert AT.tzinfo is not None

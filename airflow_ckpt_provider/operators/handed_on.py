"""What a task hands on, as a person reads it at the end of its log, or of ``airflow tasks test``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ckpt_provider.exceptions import escaped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_ckpt_provider.checkpoint.reference import Reference

#: References of a list that are shown; all of them are in XCom.
_SHOWN = 20


def as_text(handed_on: Reference | Sequence[Reference]) -> str:
    """The reference as a table, a line for each fact; of a list, a line for each."""
    if isinstance(handed_on, dict):
        facts = list(_facts(handed_on))
        width = max(len(name) for name, _ in facts)
        return "\n".join(f"  {name:<{width}}  {value}" for name, value in facts)
    lines = [f"  {escaped(one['idempotence_key'])}  {one['state']}, {one['rows']:,} rows" for one in handed_on[:_SHOWN]]
    left = len(handed_on) - len(lines)
    return "\n".join([*lines, f"  and {left:,} more"] if left else lines)


def _facts(handed_on: Reference) -> Iterator[tuple[str, str]]:
    yield "key", escaped(f"{handed_on['idempotence_key']} (generation {handed_on['generation']})")
    yield "state", handed_on["state"]
    yield "table", escaped(f"{handed_on['table']} (branch {handed_on['branch']})" if handed_on["branch"] else handed_on["table"])
    yield "mode", handed_on["mode"]
    yield "rows", f"{handed_on['rows']:,} in {handed_on['files']:,} files ({handed_on['bytes']:,} bytes)"
    for name, rows in handed_on.get("counts", {}).items():
        yield f"  {name}", f"{rows:,}"
    if "rejected" in handed_on:
        yield "rejected", f"{handed_on['rejected']:,} rows of the input"
    splits = handed_on["splits"]
    yield "splits", f"{splits['total']:,}: {splits['recovered']:,} recovered, {splits['written']:,} written by this attempt"
    if "commit" in handed_on:
        commit = handed_on["commit"]
        word, number = ("version", commit["version"]) if "version" in commit else ("snapshot", commit.get("snapshot_id"))
        when = "landed now" if commit["landed_now"] else "landed before"
        yield word, "none: there was nothing to write" if number is None else f"{number} ({when}, {commit['committed_at']})"

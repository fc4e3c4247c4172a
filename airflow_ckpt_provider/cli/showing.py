"""What a person reads of a checkpoint, and of a sweep, in a terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from airflow_ckpt_provider.cli.output import as_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from airflow_ckpt_provider.hooks.sweeps import SweepResult
    from airflow_ckpt_provider.overview.facts import Details

#: What ``list`` shows of each checkpoint in a table.
columns_of_list = ("key", "state", "staged", "splits", "rows", "attempts", "changed_at", "table")

_MIB = 1 << 20


def shown(details: Details) -> str:
    """All that is known of a generation, but its splits one by one."""
    return "\n".join([*_facts(details), *_attempts(details), "", details.next_attempt])


def _facts(details: Details) -> Iterator[str]:
    summary = details.summary
    facts = {
        "key": summary.key,
        "state": "cannot be told" if summary.state is None else summary.state.value,
        "generation": f"{summary.generation} of {len(details.generations)}",
        "table": f"{summary.table} ({summary.format}, branch {summary.branch}, mode {summary.mode})",
        "task": f"{summary.dag_id} {summary.task_id} {summary.run_id}"
        + (f" [{summary.map_index}]" if summary.map_index >= 0 else ""),
        "transform": details.transform,
        "splits": _splits(details),
        "sealed": _sealed(details),
        "commit": f"{summary.commit_id}, {_time(summary.committed_at)}" if summary.committed_at is not None else "",
        "given up": f"{_time(details.discarded_at)}: {details.discarded_because}" if details.discarded_at is not None else "",
        "saved": _saved(details),
        "store": details.store,
    }
    yield as_table([[f"{name}:", value] for name, value in facts.items() if value])
    yield from (f"Problem: {problem}" for problem in details.problems)


def _splits(details: Details) -> str:
    counts = Counter(split.state.value for split in details.splits)
    return f"{len(details.splits):,}: " + ", ".join(f"{count:,} {state}" for state, count in counts.items()) if counts else ""


def _sealed(details: Details) -> str:
    summary = details.summary
    if summary.rows is None:
        return ""
    counts = "".join(f", {count:,} {name}" for name, count in sorted(details.counts.items()))
    rejected = f", {details.rejected_rows:,} rejected" if details.rejected_rows else ""
    size = (summary.bytes or 0) / _MIB
    return f"{_time(summary.sealed_at)}: {summary.rows:,} rows in {summary.files:,} files, {size:,.1f} MiB{counts}{rejected}"


def _saved(details: Details) -> str:
    kept = details.kept
    if kept is None:
        return ""
    rows = "" if kept.rows is None or kept.bytes is None else f", {kept.rows:,} rows, {kept.bytes / _MIB:,.1f} MiB"
    return f"the newest attempt did not write {kept.splits:,} splits again{rows}: {kept.seconds:,.0f} s of earlier attempts"


def _attempts(details: Details) -> Iterator[str]:
    if details.attempts:
        titles = ["", "ATTEMPT", "BEGAN", "TRY", "HOST", "ENGINE", "STAGED"]
        rows = [
            [
                "",
                str(attempt.number),
                _time(attempt.started_at),
                str(attempt.try_number),
                attempt.host,
                attempt.engine,
                f"{attempt.staged:,}",
            ]
            for attempt in details.attempts
        ]
        yield ""
        yield as_table([titles[1:], *(row[1:] for row in rows)])


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def swept(result: SweepResult) -> str:
    """A line for each generation, and one for all."""
    lines = [["KEY", "GENERATION", "STATE", "OBJECTS", "FILES", "KEPT BECAUSE"]]
    lines += [
        [
            of_generation["idempotence_key"] or of_generation["folder"],
            str(of_generation["generation"]),
            of_generation["state"] or "?",
            str(of_generation["objects"]),
            str(of_generation["files"]),
            of_generation["kept"].partition("\n")[0],
        ]
        for of_generation in result["generations"]
    ]
    totals = result["totals"]
    more = [f"and {result['unlisted']} more"] if result["unlisted"] else []
    would = "Would remove" if result["dry_run"] else "Removed"
    total = (
        f"{would} {totals['objects']} objects of {totals['cleaned']} generations from {result['store']}, and {totals['files']} "
        f"files from tables. Kept {totals['kept']}; {totals['younger']} are younger, {totals['without_records']} have nothing to "
        f"remove; {totals['foreign']} foreign objects."
    )
    return "\n".join([as_table(lines), *more, total])

"""What the commands do. Output goes to standard output, and what went wrong, in a line, to standard error, with the exit code 1."""

from __future__ import annotations

import getpass
import json
import sys
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.codes import request_continuation
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import CheckpointError, CheckpointMissingError
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook
from airflow_ckpt_provider.hooks.lookup import OwnConnections
from airflow_ckpt_provider.hooks.sweeps import SweepOrder, SweepRun, require_abandoned, require_older_than

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_ckpt_provider.hooks.sweeps import SweepResult


def go_on(args: Namespace) -> None:
    """``airflow checkpoints continue KEY``: ask that the next attempt goes on with whatever code it has.

    :param args: ``key`` and ``checkpoint_conn_id``.
    """
    try:
        store = CheckpointHook(args.checkpoint_conn_id).get_conn()
        checkpoint = Checkpoint.latest(store, IdempotenceKey(args.key))
        if checkpoint is None:
            raise CheckpointMissingError(
                f"There is no checkpoint under the key {args.key!r} in the store {store.uri}. Its stage logs the key that it "
                "writes under."
            )
        request_continuation(checkpoint, getpass.getuser())
    except CheckpointError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command's output
        raise SystemExit(1) from error
    task = checkpoint.header.origin.task_id
    staged = len(checkpoint.staged_ids())
    print(  # noqa: T201 - a command's output
        f"Generation {checkpoint.header.generation} of the key {args.key!r} keeps its {staged} staged splits. Its next attempt "
        f"goes on with the code that it has: clear the task {task!r} now."
    )


def clean_up(args: Namespace) -> None:
    """``airflow checkpoints cleanup``: sweep a store, and print what was removed.

    :param args: as ``cli.definition`` has them.
    """
    try:
        order = SweepOrder(require_older_than(args.older_than), args.keys, require_abandoned(args.abandoned), args.dry_run)
        run = SweepRun(order, OwnConnections(args.checkpoint_conn_id, args.iceberg_conn_id, args.lance_conn_id))
        result = run.run(lambda _: None)
        print(json.dumps(result) if args.output == "json" else _as_table(result))  # noqa: T201 - a command's output
        run.require_no_errors()
    except CheckpointError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command's output
        raise SystemExit(1) from error


def _as_table(result: SweepResult) -> str:
    """A line for each generation, and one for all."""
    lines = [("KEY", "GENERATION", "STATE", "OBJECTS", "FILES", "KEPT BECAUSE")]
    lines += [
        (
            swept["idempotence_key"] or swept["folder"],
            str(swept["generation"]),
            swept["state"] or "?",
            str(swept["objects"]),
            str(swept["files"]),
            swept["kept"].partition("\n")[0],
        )
        for swept in result["generations"]
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    shown = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[5]]).rstrip() for line in lines
    ]
    totals = result["totals"]
    if result["unlisted"]:
        shown.append(f"and {result['unlisted']} more")
    would = "Would remove" if result["dry_run"] else "Removed"
    shown.append(
        f"{would} {totals['objects']} objects of {totals['cleaned']} generations from {result['store']}, and {totals['files']} "
        f"files from tables. Kept {totals['kept']}; {totals['younger']} are younger, {totals['without_records']} have nothing to "
        f"remove; {totals['foreign']} foreign objects."
    )
    return "\n".join(shown)

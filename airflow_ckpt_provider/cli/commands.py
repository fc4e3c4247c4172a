"""What the commands do. Output goes to standard output, and what went wrong, in a line, to standard error, with the exit code 1."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.codes import request_continuation
from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.exceptions import CheckpointError, CheckpointMissingError
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook

if TYPE_CHECKING:
    from argparse import Namespace


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

"""What the commands do, by the functions that the page calls, too."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.key import IdempotenceKey
from airflow_ckpt_provider.cli.output import command, confirm, print_document, print_rows, say
from airflow_ckpt_provider.cli.showing import columns_of_list, shown, swept
from airflow_ckpt_provider.hooks.checkpoint import CheckpointHook
from airflow_ckpt_provider.hooks.doctor import examine
from airflow_ckpt_provider.hooks.lookup import OwnConnections, table_of
from airflow_ckpt_provider.hooks.sweeps import SweepOrder, SweepRun, require_abandoned, require_older_than
from airflow_ckpt_provider.overview.actions import Action, announce, newest, perform
from airflow_ckpt_provider.overview.details import details
from airflow_ckpt_provider.overview.listing import listing

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
    from airflow_ckpt_provider.tables.table import Table


@command
def list_all(args: Namespace) -> None:
    """``airflow checkpoints list``: the newest generation of each key.

    :param args: as ``cli.definition`` has them; so of all commands.
    """
    store = CheckpointHook(args.checkpoint_conn_id).get_conn()
    found = listing(store, args.keys)
    chosen = [summary for summary in found if not args.state or summary.state in args.state]
    if not chosen and args.output == "table":
        say(f"There are no such checkpoints in the store {store.uri}." if found else f"There are no checkpoints in {store.uri}.")
        return
    print_rows([summary.to_json() for summary in chosen], args.output, columns_of_list)


@command
def show(args: Namespace) -> None:
    """``airflow checkpoints show KEY``: all that is known of one."""
    found = details(CheckpointHook(args.checkpoint_conn_id).get_conn(), IdempotenceKey(args.key), args.generation)
    if args.output in {"json", "yaml"}:
        print_document(found.to_json(), args.output)
    else:
        say(shown(found))


@command
def go_on(args: Namespace) -> None:
    """``airflow checkpoints continue KEY``: ask that the next attempt goes on with whatever code it has."""
    _act(Action.CONTINUE, args)


@command
def restart(args: Namespace) -> None:
    """``airflow checkpoints restart KEY``: give up what is staged, so that the next attempt writes everything anew."""
    _act(Action.RESTART, args)


@command
def discard(args: Namespace) -> None:
    """``airflow checkpoints discard KEY``: give up what is staged, for good."""
    _act(Action.DISCARD, args)


@command
def take_out(args: Namespace) -> None:
    """``airflow checkpoints undo KEY``: take what has landed out of the table again."""
    _act(Action.UNDO, args)


@command
def clean(args: Namespace) -> None:
    """``airflow checkpoints clean``: sweep a store, and print what was removed."""
    order = SweepOrder(require_older_than(args.older_than), args.keys, require_abandoned(args.abandoned), args.dry_run)
    run = SweepRun(order, OwnConnections(args.checkpoint_conn_id, args.iceberg_conn_id, args.lance_conn_id))
    result = run.run(lambda _: None)
    if args.output in {"json", "yaml"}:
        print_document(result, args.output)
    else:
        say(swept(result))
    run.require_no_errors()


@command
def doctor(args: Namespace) -> None:
    """``airflow checkpoints doctor``: whether a stage would find what it needs. Ends with 1 if it would not."""
    findings = list(examine(args.checkpoint_conn_id, args.iceberg_conn_id, args.lance_conn_id, args.spark_conn_id))
    rows = [finding.to_json() for finding in findings]
    if args.output in {"table", "plain"}:
        rows = [row | {"ok": "ok" if row["ok"] else "FAILED"} for row in rows]
    print_rows(rows, args.output, ("ok", "check", "detail"))
    if not all(finding.ok for finding in findings):
        raise SystemExit(1)


def _act(action: Action, args: Namespace) -> None:
    """Say what an action will do, ask, and do it."""
    checkpoint = newest(CheckpointHook(args.checkpoint_conn_id).get_conn(), IdempotenceKey(args.key))
    connections = OwnConnections(args.checkpoint_conn_id, args.iceberg_conn_id, args.lance_conn_id)

    def table(of: Checkpoint) -> Table:
        return table_of(of, of.key.value, connections)

    force = bool(getattr(args, "force", False))
    # What is staged stays, so that there is nothing to confirm.
    if action is not Action.CONTINUE:
        confirm(announce(action, checkpoint, table, force=force), yes=args.yes)
    say(perform(action, checkpoint, table, getpass.getuser(), force=force))

"""Which commands there are. Airflow imports this at each of its own commands: what they do is loaded when one is called."""

from __future__ import annotations

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

_KEY = Arg(("key",), help="Idempotence key of the write")  # type: ignore[no-untyped-call]
_STORE = Arg(  # type: ignore[no-untyped-call]
    ("--checkpoint-conn-id",),
    default="checkpoint_default",
    help="Connection of the checkpoint store (default: checkpoint_default)",
)
_ICEBERG = Arg(  # type: ignore[no-untyped-call]
    ("--iceberg-conn-id",),
    default="iceberg_default",
    help="Connection of the Iceberg tables; writes of another one are left alone (default: iceberg_default)",
)
_LANCE = Arg(  # type: ignore[no-untyped-call]
    ("--lance-conn-id",), default=None, help="The same of Lance datasets (default: the environment's credentials)"
)
_SPARK = Arg(("--spark-conn-id",), default="spark_default", help="Connection of Spark (default: spark_default)")  # type: ignore[no-untyped-call]
_OUTPUT = Arg(  # type: ignore[no-untyped-call]
    ("--output", "-o"),
    choices=("table", "json", "yaml", "plain"),
    default="table",
    help="How to print: json and yaml have all that is known, and are a stable contract (default: table)",
)
_FORCE = Arg(  # type: ignore[no-untyped-call]
    ("--force",),
    action="store_true",
    help="Of an Iceberg write that has replaced rows: let rows that others have added since stand beside those that come back",
)
_YES = Arg(("--yes", "-y"), action="store_true", help="Do not ask")  # type: ignore[no-untyped-call]
_KEYS = Arg(("--keys",), default="*", help="Which idempotence keys, as a pattern such as 'orders/*' (default: all)")  # type: ignore[no-untyped-call]
_STATE = Arg(  # type: ignore[no-untyped-call]
    ("--state",),
    action="append",
    choices=("planned", "staging", "sealed", "committed", "undone", "discarded", "freed"),
    help="Only checkpoints in this state; may be repeated",
)
_GENERATION = Arg(("--generation",), type=int, default=None, help="Which generation of the key (default: the newest)")  # type: ignore[no-untyped-call]
_OLDER_THAN = Arg(  # type: ignore[no-untyped-call]
    ("--older-than",),
    default=None,
    help=(
        "How long nothing must have been put of a write, by the store's clock: 14d, 12h, 2w. Longer than any stage takes "
        "(default: older_than of the section [checkpoints] of the configuration)"
    ),
)
_ABANDONED = Arg(  # type: ignore[no-untyped-call]
    ("--abandoned",),
    choices=("keep", "discard"),
    default="keep",
    help="What becomes of writes that are neither committed nor discarded (default: keep)",
)
_DRY_RUN = Arg(("--dry-run",), action="store_true", help="Change nothing, and say what would be removed")  # type: ignore[no-untyped-call]

_ACT = (_KEY, _YES, _STORE, _ICEBERG, _LANCE)


def checkpoints_commands() -> list[GroupCommand]:
    """The group ``airflow checkpoints``."""
    return [
        GroupCommand(
            name="checkpoints",
            help="Checkpointed writes",
            subcommands=(
                ActionCommand(
                    name="list",
                    help="List the checkpoints of a store, the newest generation of each key",
                    func=lazy_load_command("airflow_ckpt_provider.cli.commands.list_all"),
                    args=(_KEYS, _STATE, _STORE, _OUTPUT),
                ),
                ActionCommand(
                    name="show",
                    help="Show one checkpoint: its splits, its attempts, what a retry saved, and what one would do now",
                    func=lazy_load_command("airflow_ckpt_provider.cli.commands.show"),
                    args=(_KEY, _GENERATION, _STORE, _OUTPUT),
                ),
                ActionCommand(
                    name="continue",
                    help="Keep what is staged and go on with the code as it is now",
                    description=(
                        "After a transform was corrected, its stage refuses to mix splits of the old code with those of the new. "
                        "This asks that the next attempt keeps what is staged and goes on with the code that it has. Clear the "
                        "stage afterwards."
                    ),
                    func=lazy_load_command("airflow_ckpt_provider.cli.commands.go_on"),
                    args=(_KEY, _STORE, _ICEBERG, _LANCE),
                ),
                ActionCommand(
                    name="restart",
                    help="Give up what is staged, so that the next attempt writes everything anew",
                    description=(
                        "Nothing is deleted. What has landed, or may still land, is not given up. Clear the stage afterwards."
                    ),
                    func=lazy_load_command("airflow_ckpt_provider.cli.commands.restart"),
                    args=_ACT,
                ),
                ActionCommand(
                    name="discard",
                    help="Give up what is staged, for good",
                    description=(
                        "No commit lands it any more. Nothing is deleted: files go with a clean-up. What has landed, or may still "
                        "land, is not given up."
                    ),
                    func=lazy_load_command("airflow_ckpt_provider.cli.commands.discard"),
                    args=_ACT,
                ),
                ActionCommand(
                    name="undo",
                    help="Take what a write has landed out of the table again, and put back what it has replaced",
                    description=(
                        "One more snapshot or version, once. Refused, with names, where later commits built on it, or where what "
                        "is to come back was expired. Clear the stage to write everything anew."
                    ),
                    func=lazy_load_command("airflow_ckpt_provider.cli.commands.take_out"),
                    args=(_KEY, _FORCE, _YES, _STORE, _ICEBERG, _LANCE),
                ),
                ActionCommand(
                    name="clean",
                    help="Remove the records of old writes from a checkpoint store, and their orphans from tables",
                    description=(
                        "Of committed writes a compact record stays, which tells that they are committed. They cannot be replaced "
                        "any more. Can be stopped and repeated. Ends with 1 if something could not be read, which is kept."
                    ),
                    func=lazy_load_command("airflow_ckpt_provider.cli.commands.clean"),
                    args=(_OLDER_THAN, _KEYS, _ABANDONED, _DRY_RUN, _STORE, _ICEBERG, _LANCE, _OUTPUT),
                ),
                ActionCommand(
                    name="doctor",
                    help="Look whether a stage would find what it needs: store, catalog, Spark, Java, versions",
                    description=(
                        "Puts, races for, reads and removes small objects in the checkpoint store; starts no Spark. Ends with 1 if "
                        "something is not as it has to be."
                    ),
                    func=lazy_load_command("airflow_ckpt_provider.cli.commands.doctor"),
                    args=(_STORE, _ICEBERG, _LANCE, _SPARK, _OUTPUT),
                ),
            ),
        )
    ]

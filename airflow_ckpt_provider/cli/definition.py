"""Which commands there are. Airflow imports this at each of its own commands: what they do is loaded when one is called."""

from __future__ import annotations

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

_KEY = Arg(("key",), help="Idempotence key of the write")  # type: ignore[no-untyped-call]
_STORE = Arg(  # type: ignore[no-untyped-call]
    ("--checkpoint-conn-id",),
    default="checkpoint_default",
    help="Connection of the checkpoint store (default: checkpoint_default)",
)
_SWEEP = (
    Arg(  # type: ignore[no-untyped-call]
        ("--older-than",),
        required=True,
        help="How long nothing must have been put of a write, by the store's clock: 14d, 12h, 2w. Longer than any stage takes",
    ),
    Arg(("--keys",), default="*", help="Which idempotence keys, as a pattern such as 'orders/*' (default: all)"),  # type: ignore[no-untyped-call]
    Arg(  # type: ignore[no-untyped-call]
        ("--abandoned",),
        choices=("keep", "discard"),
        default="keep",
        help="What becomes of writes that are neither committed nor discarded (default: keep)",
    ),
    Arg(("--dry-run",), action="store_true", help="Change nothing, and say what would be removed"),  # type: ignore[no-untyped-call]
    _STORE,
    Arg(  # type: ignore[no-untyped-call]
        ("--iceberg-conn-id",),
        default="iceberg_default",
        help="Connection of the Iceberg tables; writes of another one are kept (default: iceberg_default)",
    ),
    Arg(("--lance-conn-id",), default=None, help="The same of Lance datasets (default: the environment's credentials)"),  # type: ignore[no-untyped-call]
    Arg(("--output", "-o"), choices=("table", "json"), default="table", help="How to print what was removed (default: table)"),  # type: ignore[no-untyped-call]
)


def checkpoints_commands() -> list[GroupCommand]:
    """The group ``airflow checkpoints``."""
    return [
        GroupCommand(
            name="checkpoints",
            help="Checkpointed writes",
            subcommands=(
                ActionCommand(
                    name="continue",
                    help="Keep what is staged and go on with the code as it is now",
                    description=(
                        "After a transform was corrected, its stage refuses to mix splits of the old code with those of the new. "
                        "This asks that the next attempt keeps what is staged and goes on with the code that it has. Clear the "
                        "stage afterwards."
                    ),
                    func=lazy_load_command("airflow_ckpt_provider.cli.commands.go_on"),
                    args=(_KEY, _STORE),
                ),
                ActionCommand(
                    name="cleanup",
                    help="Remove the records of old writes from a checkpoint store, and their orphans from tables",
                    description=(
                        "Of committed writes a compact record stays, which tells that they are committed. They cannot be replaced "
                        "any more. Can be stopped and repeated. Ends with 1 if something could not be read, which is kept."
                    ),
                    func=lazy_load_command("airflow_ckpt_provider.cli.commands.clean_up"),
                    args=_SWEEP,
                ),
            ),
        )
    ]

"""Which commands there are. Airflow imports this at each of its own commands: what they do is loaded when one is called."""

from __future__ import annotations

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

_KEY = Arg(("key",), help="Idempotence key of the write")  # type: ignore[no-untyped-call]
_STORE = Arg(  # type: ignore[no-untyped-call]
    ("--checkpoint-conn-id",),
    default="checkpoint_default",
    help="Connection of the checkpoint store (default: checkpoint_default)",
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
            ),
        )
    ]

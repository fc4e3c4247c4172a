"""Where in its input a task failed: the split, its files, and how many rows were done. It stands beside the error that was raised.

An error that no retry can cure names what is wrong itself, so that notes are for the others: those of the user's function, of the
storage, of a library. Of rows that do not fit the table it names the column, and not which of ten thousand files has it: that is
added to its message, which is all of it that reaches the driver.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_ckpt_provider.checkpoint.secrets import without_credentials
from airflow_ckpt_provider.exceptions import NullInRequiredColumnError, SchemaMismatchError, TerminalError
from airflow_ckpt_provider.sources.protocol import NamingReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_ckpt_provider.checkpoint.documents import Split
    from airflow_ckpt_provider.sources.protocol import Reader

#: Files that a message names.
_SHOWN = 3


@contextlib.contextmanager
def naming(split_id: str, where: Callable[[], str] | None = None) -> Iterator[None]:
    """Within the block, errors get a note that names the split, unless their class takes none; those of rows have it in their text.

    :param where: what else to say of it; asked when there is an error, which stays the one that is raised if that fails.
    """
    try:
        yield
    except (SchemaMismatchError, NullInRequiredColumnError) as error:
        raise type(error)(f"{error}\n(in split {split_id}{_told(where)})") from error
    except TerminalError:
        raise
    except Exception as error:
        at = _told(where)
        with contextlib.suppress(Exception):
            error.add_note(f"(in split {split_id}{at})")
        raise


def _told(where: Callable[[], str] | None) -> str:
    with contextlib.suppress(Exception):
        return "" if where is None else without_credentials(where())
    return ""


def in_input(split: Split, reader: Reader, row: int) -> str:
    """Where in the input of a split a task was, to follow the split's name.

    :param row: rows of the input of which all has come out.
    """
    behind = f", behind row {row:,} of its input" if row else ""
    places = reader.places(split) if isinstance(reader, NamingReader) else []
    if not places:
        return behind
    more = len(places) - _SHOWN
    return f"{behind}: {', '.join(places[:_SHOWN])}{f' and {more:,} more' if more > 0 else ''}"

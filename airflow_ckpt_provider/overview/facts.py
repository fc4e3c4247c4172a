"""The facts that are shown of a checkpoint. Their JSON is a contract of the command line: members are added, never renamed."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - msgspec reads it
from enum import StrEnum

import msgspec

from airflow_ckpt_provider.checkpoint.state import State  # noqa: TC001 - msgspec reads it


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all: times are UTC, and ISO 8601 in JSON."""

    def to_json(self) -> dict[str, object]:
        """As the command line prints it, and the page asks for it."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


class SplitState(StrEnum):
    """What happened to a split, as far as the store tells. Whether a task computes it just now, only Airflow and Spark know."""

    RECOVERED = "recovered"
    WRITTEN = "written"
    BEGUN = "begun"
    MISSING = "missing"


class Summary(Facts, frozen=True, kw_only=True):
    """One checkpoint in a list: the newest generation of a key.

    :param key: idempotence key; empty if the header cannot be read.
    :param folder: of the generation in the store, by which it is found if its header cannot be read.
    :param state: None if it cannot be told.
    :param lands: whether a commit is to land it; False for rows that are staged for another task to read.
    :param dag_id: of the task that has opened the generation; empty for a program of the user's own.
    :param map_index: -1 for a task that is not mapped.
    :param changed_at: when the newest of its objects was put, by the store's clock.
    :param attempts: number of attempts that have begun.
    :param splits: of the plan; None before it is pinned, and once its records are removed before it was sealed.
    :param staged: splits that are staged.
    :param rows: of the seal, as are ``bytes`` and ``files``; None before it is sealed.
    :param commit_id: Iceberg snapshot or Lance version; None if there is none, or nothing had to be written.
    :param problem: why something could not be read, as one line; empty if all was.
    """

    key: str
    generation: int
    state: State | None
    table: str = ""
    format: str = ""
    branch: str = ""
    mode: str = ""
    lands: bool = True
    dag_id: str = ""
    task_id: str = ""
    run_id: str = ""
    map_index: int = -1
    created_at: datetime | None = None
    changed_at: datetime | None = None
    attempts: int = 0
    splits: int | None = None
    staged: int = 0
    rows: int | None = None
    bytes: int | None = None
    files: int | None = None
    sealed_at: datetime | None = None
    commit_id: int | None = None
    committed_at: datetime | None = None
    folder: str = ""
    problem: str = ""


class SplitFacts(Facts, frozen=True, kw_only=True):
    """One split of the plan.

    :param id: its name in the plan.
    :param input_bytes: bytes of its input, as far as the source knows them before reading.
    :param attempt: number of the attempt that has staged it, counted from 1; None if it is not staged.
    """

    id: str
    state: SplitState
    input_bytes: int
    attempt: int | None = None


class AttemptFacts(Facts, frozen=True, kw_only=True):
    """One execution of the stage.

    :param number: counted from 1, in the order in which attempts began.
    :param try_number: Airflow's.
    :param engine: what ran its splits, such as ``spark 4.2.0``.
    :param staged: splits that it has staged, by the store's clock.
    :param last_staged_at: when it has staged the last of them, by the store's clock; None if it has staged none.
    """

    number: int
    started_at: datetime
    try_number: int
    host: str
    pid: int
    engine: str
    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    staged: int
    last_staged_at: datetime | None


class CodeFacts(Facts, frozen=True, kw_only=True):
    """A version of the transform's code that has computed rows, or is allowed to.

    :param digest: that stands for it in the store.
    :param version: what the user says of it; None if they say nothing.
    :param accepted_at: when it took the place of other code; None for the first.
    :param splits: that it has computed, in part or as a whole; None before it is sealed.
    """

    digest: str
    transform: str
    version: str | None
    accepted_at: datetime | None
    splits: int | None = None


class Kept(Facts, frozen=True, kw_only=True):
    """What the newest attempt did not have to do again.

    :param splits: staged by earlier attempts.
    :param rows: of these splits, and ``bytes`` of their files; None if there are too many records to read for a page.
    :param seconds: from the start of each earlier attempt to the last split that it has staged, all together.
    """

    splits: int
    rows: int | None
    bytes: int | None
    seconds: float


class Details(Facts, frozen=True, kw_only=True):
    """All that is shown of one generation.

    :param generations: all of the key, in their order.
    :param source: what is read, as the user wrote it, and ``parameters`` of the mode.
    :param transform: name of the function; empty for none.
    :param connections: ids of Airflow's connections: ``table``, ``spark``, ``checkpoint``.
    :param splits: of the newest round, in the order of the plan.
    :param rounds: number of plans that were pinned.
    :param counts: what became of the rows, in modes that distinguish: ``inserted``, ``updated``, …
    :param rejected_rows: rows of the input that the write leaves out, because the transform failed at them.
    :param kept: what the newest attempt took up; None if no earlier one has staged anything.
    :param next_attempt: what a retry would do now, as a sentence or two.
    :param discarded_at: when it was given up, and ``discarded_because`` of what.
    :param replaces: the generation whose rows its commit takes out.
    :param problems: what could not be read, and why.
    """

    summary: Summary
    store: str
    generations: list[int]
    source: dict[str, object]
    parameters: dict[str, object]
    transform: str
    connections: dict[str, str]
    attempts: list[AttemptFacts]
    splits: list[SplitFacts]
    rounds: int
    codes: list[CodeFacts]
    counts: dict[str, int]
    rejected_rows: int
    kept: Kept | None
    next_attempt: str
    discarded_at: datetime | None = None
    discarded_because: str = ""
    replaces: int | None = None
    problems: list[str] = []

"""Python's own documentation, cut, embedded and counted, in stages that resume by themselves; with a bug that is fixed half-way.

What happens:

1. ``land_topics`` writes the topics of Python's ``help()``, some 80 documents, as four Parquet files, and creates dataset and
   table.
2. ``chunks`` cuts each document into pieces of some hundred words (``FlatMap``). Its rows are staged for the next tasks, and never
   land.
3. ``vectors`` embeds each piece (``Map``, with a vocabulary that is set up once in each worker process). Its function has a bug:
   it fails at a piece without a single word of letters only. On failure the bug is corrected, and the second try, with other code
   (``on_change="continue"``), goes on behind the row where the first one failed.
4. ``write_vectors`` and ``commit_vectors`` land the pieces in a Lance dataset; ``count_words`` and ``commit_words`` land the number
   of pieces and words of each document (``Aggregate``) in an Iceberg table. Both replace what an earlier run has landed.
5. ``clean_up`` frees what the first two stages have staged.

The vector is that of a hashing vectoriser: deterministic, computed here, no model to download. It needs no connection; dataset,
table and checkpoints lie below ``AIRFLOW_HOME/checkpoints``.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from airflow.sdk import DAG, task

from airflow_ckpt_provider.operators.cleanup import CheckpointCleanupOperator
from airflow_ckpt_provider.operators.commit import CheckpointCommitOperator
from airflow_ckpt_provider.operators.iceberg import CheckpointedIcebergWriteOperator
from airflow_ckpt_provider.operators.lance import CheckpointedLanceWriteOperator
from airflow_ckpt_provider.operators.transform import CheckpointedTransformOperator
from airflow_ckpt_provider.sources import Files, Staged
from airflow_ckpt_provider.transforms import Aggregate, FlatMap, Map

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import Context

HOME = os.environ.get("AIRFLOW_HOME", os.path.expanduser("~/airflow"))
LANDING = os.path.join(HOME, "landing", "topics")
DATASET = os.path.join(HOME, "checkpoints", "topics.lance")
TABLE = "docs.words"

#: There once the bug is corrected: this stands for the line of the function that somebody changes after the first try.
CORRECTED = os.path.join(HOME, "landing", "corrected")

#: Words of a piece, and numbers of a vector.
WORDS, DIMENSIONS = 120, 64

COLUMNS = {"topic": pa.string(), "number": pa.int64(), "text": pa.string(), "vector": pa.list_(pa.float32(), DIMENSIONS)}


def cut(text: str) -> Iterator[dict[str, object]]:
    """The pieces of a document."""
    words = text.split()
    for number, begin in enumerate(range(0, len(words), WORDS)):
        yield {"number": number, "text": " ".join(words[begin : begin + WORDS])}


def load_vocabulary() -> dict[str, int]:
    """What a model would be: made once in each worker process, and not for each split."""
    return {word: place for place, word in enumerate(("class", "object", "function", "string", "number", "value", "name", "type"))}


def vector(words: list[str], vocabulary: dict[str, int]) -> list[float]:
    """A unit vector in which texts that share words are near to each other."""
    import math
    import zlib

    found = [0.0] * DIMENSIONS
    for word in words:
        place = vocabulary.get(word, 8 + zlib.crc32(word.encode()) % (DIMENSIONS - 8))
        found[place] += 1.0
    length = math.sqrt(sum(value * value for value in found))
    return [value / length for value in found]


def embed_first(text: str, state: dict[str, int]) -> dict[str, list[float]]:
    """With the bug: a piece may have no word of letters only, and a vector of nothing has no length."""
    return {"vector": vector([word.lower() for word in text.split() if word.isalpha()], state)}


def embed_corrected(text: str, state: dict[str, int]) -> dict[str, list[float]]:
    """Without it."""
    words = [word.lower() for word in text.split()]
    return {"vector": vector([word for word in words if word.isalpha()] or words, state)}


def correct(context: Context) -> None:
    """Somebody reads the error, which names the row, and corrects the function."""
    del context
    with open(CORRECTED, "w"):
        pass


def count(text: list[str]) -> dict[str, int]:
    """How long a document is."""
    return {"pieces": len(text), "words": sum(len(piece.split()) for piece in text)}


@task
def land_topics() -> int:
    """Write the landing files, once, and create dataset and table."""
    from pydoc_data.topics import topics

    import lance
    import pyarrow.parquet as pq
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    from airflow_ckpt_provider.hooks.catalog import iceberg_catalog

    os.makedirs(LANDING, exist_ok=True)
    # Somebody has added a page of symbols, as pages of symbols get added.
    documents = [*sorted(topics.items()), ("symbols", "+ - * / // % ** << >> & | ^ ~ := < > <= >= == !=")]
    for number in range(4):
        path = os.path.join(LANDING, f"{number}.parquet")
        if not os.path.exists(path):
            part = documents[number::4]
            pq.write_table(pa.table({"topic": [topic for topic, _ in part], "text": [text for _, text in part]}), path)
    if not os.path.exists(DATASET):
        lance.write_dataset(pa.Table.from_batches([], pa.schema(COLUMNS)), DATASET)
    catalog = iceberg_catalog()
    catalog.create_namespace_if_not_exists("docs")
    fields = [NestedField(1, "topic", StringType()), NestedField(2, "pieces", LongType()), NestedField(3, "words", LongType())]
    catalog.create_table_if_not_exists(TABLE, Schema(*fields))
    return len(documents)


with DAG(
    "example_documents",
    schedule=None,
    start_date=datetime(2026, 1, 1),  # noqa: DTZ001 - Airflow takes it as UTC
    tags=["example"],
    doc_md=__doc__,
):
    chunks = CheckpointedTransformOperator(
        task_id="chunks",
        source=Files(f"{LANDING}/*.parquet", max_split_bytes=1),
        transform=FlatMap(cut, output={"number": pa.int64(), "text": pa.string()}, keep=["topic"]),
    )
    vectors = CheckpointedTransformOperator(
        task_id="vectors",
        source=Staged(chunks.output),
        transform=Map(
            embed_corrected if os.path.exists(CORRECTED) else embed_first,
            setup=load_vocabulary,
            output={"vector": COLUMNS["vector"]},
            keep=True,
        ),
        save_every=50,
        on_change="continue",
        on_retry_callback=correct,
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
    write_vectors = CheckpointedLanceWriteOperator(
        task_id="write_vectors", uri=DATASET, source=Staged(vectors.output), mode="overwrite"
    )
    count_words = CheckpointedIcebergWriteOperator(
        task_id="count_words",
        table=TABLE,
        source=Staged(chunks.output),
        transform=Aggregate(count, by="topic", output={"pieces": int, "words": int}, buckets=4),
        mode="overwrite",
    )
    commit_vectors = CheckpointCommitOperator(task_id="commit_vectors", checkpoint=write_vectors.output)
    commit_words = CheckpointCommitOperator(task_id="commit_words", checkpoint=count_words.output)
    clean_up = CheckpointCleanupOperator(task_id="clean_up", checkpoint=commit_vectors.output)

    land_topics() >> chunks
    commit_words >> clean_up

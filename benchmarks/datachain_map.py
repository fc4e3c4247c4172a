"""DataChain's map of the same rows; a script of its own, which DataChain takes up again by its name, in an environment of its own.

Arguments: folder of the Parquet files, log of the calls, seconds of a call, rows of a batch.
"""

# DataChain reads the types of the function's signature as they are.
import sys
import time

import datachain

FOLDER, LOG, CALL_S, BATCH = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])


def half(id: int) -> float:  # noqa: A002 - a column
    """What is computed of a row; noted once it is done."""
    time.sleep(CALL_S)
    with open(LOG, "a") as file:
        file.write(f"{id}\n")
    return id / 2


if __name__ == "__main__":
    rows = datachain.read_parquet(f"file://{FOLDER}/").settings(parallel=2, batch_size=BATCH).map(half=half).save("halves")
    print(rows.count())

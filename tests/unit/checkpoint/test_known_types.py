"""Many threads that read documents of a type which no thread has read before."""

from __future__ import annotations

import subprocess
import sys
import textwrap

#: In a process of its own, because it would end in a segmentation fault.
THREADS = """
    import sys
    import threading
    from concurrent.futures import ThreadPoolExecutor
    from typing import Annotated

    import msgspec

    from airflow_ckpt_provider.checkpoint.documents import part_of
    from airflow_ckpt_provider.tables.decoding import decoded

    sys.setswitchinterval(1e-6)
    KINDS = '''
    class Inner(msgspec.Struct, frozen=True, array_like=True):
        name: str
        count: Annotated[int, msgspec.Meta(ge=0)]

    class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        since: int
        inner: tuple[Inner, ...]
    '''

    def read(kind):
        barrier.wait()
        assert decoded('{"since": 1, "inner": [["a", 1]]}', kind, "it", "").inner[0].count == 1
        assert part_of({"since": 1, "inner": [["a", 1]]}, kind).since == 1

    for _ in range(300):
        names = {"msgspec": msgspec, "Annotated": Annotated}
        exec(__import__("textwrap").dedent(KINDS), names)
        barrier = threading.Barrier(6)
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(read, [names["Outer"]] * 6))
    print("all were read")
"""


def test_the_first_documents_of_a_type_can_be_read_by_many_threads_at_once():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(THREADS)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "all were read\n", f"ended with {done.returncode}: {done.stderr[-2000:]}"

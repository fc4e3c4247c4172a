"""Put-if-absent between processes: what keeps a zombie attempt and its retry apart on one machine."""

from __future__ import annotations

import subprocess
import sys
import time

from support.samples import AT

from airflow_ckpt_provider.checkpoint.documents import Tombstone
from airflow_ckpt_provider.checkpoint.store import CheckpointStore

PROCESSES, NAMES = 4, 60

RACER = """
import os, sys, time
from datetime import datetime
from airflow_ckpt_provider.checkpoint.documents import Tombstone
from airflow_ckpt_provider.checkpoint.store import CheckpointStore

uri, me, at, names, folder = sys.argv[1:]
store = CheckpointStore.at(uri)
store.check()
open(f"{folder}/ready-{me}", "w").close()
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.001)
mine = Tombstone(discarded_at=datetime.fromisoformat(at), reason=me)
print(",".join(str(n) for n in range(int(names)) if store.create(f"k/{n}.json", mine)))
"""


def test_of_many_processes_exactly_one_creates_each_object(tmp_path):
    uri = str(tmp_path / "store")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, uri, str(me), AT.isoformat(), str(NAMES), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for me in range(PROCESSES)
    ]
    patience = time.monotonic() + 60
    while len(list(tmp_path.glob("ready-*"))) < PROCESSES and time.monotonic() < patience:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    won = {str(me): racer.communicate(timeout=60)[0].strip() for me, racer in enumerate(racers)}
    assert [racer.returncode for racer in racers] == [0] * PROCESSES
    winners = {int(name): me for me, names in won.items() for name in names.split(",") if name}
    assert sum(len(names.split(",")) for names in won.values() if names) == NAMES
    store = CheckpointStore.at(uri)
    assert {n: store.read(f"k/{n}.json", Tombstone).reason for n in range(NAMES)} == winners

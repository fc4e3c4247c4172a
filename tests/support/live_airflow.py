"""A real Airflow on loopback: scheduler, DAG processor, API server and triggerer, with LocalExecutor.

Used by the tests and by the demonstration. Everything lives in one folder; every process is started in a group of its own, so that
stopping it also stops its children. Its database is SQLite if ``environment`` names no other: enough for one DAG on a quiet
machine, while a scheduler ends when it finds SQLite locked for too long.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")

#: Lines of its log that are shown of a process that has ended.
LAST_LINES = 60

#: The ``airflow`` command of this very Python.
AIRFLOW = [sys.executable, "-m", "airflow"]


def airflow_environment(home: Path, dags: Path, **extra: str) -> dict[str, str]:
    """Environment of an Airflow that shares nothing with the user's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    return kept | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONWARNINGS": "ignore",
        **extra,
    }


def create_database(environment: Mapping[str, str]) -> None:
    """Airflow's own tables: in the database that the environment names, or else in Airflow's home.

    For homes they are made once by each process, and hold nothing of the home that they are in.
    """
    if "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" in environment:
        subprocess.run([*AIRFLOW, "db", "migrate"], env=environment, capture_output=True, check=True)
    else:
        (Path(environment["AIRFLOW_HOME"]) / "airflow.db").write_bytes(_empty_database())


@functools.cache
def _empty_database() -> bytes:
    with tempfile.TemporaryDirectory() as home:
        migrate = [*AIRFLOW, "db", "migrate"]
        subprocess.run(migrate, env=airflow_environment(Path(home), Path(home)), capture_output=True, check=True)
        return (Path(home) / "airflow.db").read_bytes()


class LiveAirflow:
    """A running Airflow.

    :param home: folder for everything; created if missing.
    :param dags: folder with the DAG files.
    :param report: called with each stage of starting, as a short text.
    :param components: the processes that are started.
    :param users: roles by the names of users, whose passwords are their names, and the first of whom makes the calls; everybody is
        an admin if there are none.
    """

    def __init__(
        self,
        home: Path,
        dags: Path,
        report: Callable[[str], None] = lambda _: None,
        environment: Mapping[str, str] | None = None,
        components: Sequence[str] = COMPONENTS,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self._report = report
        self._components = components
        self._users = users or {}
        self._prepared = False
        port, log_port, trigger_port = _free_ports(3)
        self.url = f"http://127.0.0.1:{port}"
        self.environment = airflow_environment(
            home,
            dags,
            AIRFLOW__CORE__EXECUTOR="LocalExecutor",
            AIRFLOW__CORE__PARALLELISM="2",
            AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION="False",
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS=str(not self._users),
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS=",".join(f"{name}:{role}" for name, role in self._users.items())
            or "admin:admin",
            AIRFLOW__CORE__EXECUTION_API_SERVER_URL=f"{self.url}/execution/",
            AIRFLOW__API__PORT=str(port),
            AIRFLOW__API__HOST="127.0.0.1",
            AIRFLOW__API__WORKERS="1",
            AIRFLOW__API__BASE_URL=self.url,
            AIRFLOW__API_AUTH__JWT_SECRET=secrets.token_hex(32),
            AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT=str(log_port),
            AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT=str(trigger_port),
            AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL="5",
            AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL="600",
            **(environment or {}),
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._headers: dict[str, str] = {}

    def prepare(self) -> None:
        """Create the home and the database, for whoever wants to have them before anything runs."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._report("Creating Airflow's database")
        create_database(self.environment)
        passwords = self.home / "simple_auth_manager_passwords.json.generated"
        passwords.write_text(json.dumps({name: name for name in self._users}))
        self._prepared = True

    def __enter__(self) -> Self:
        if not self._prepared:
            self.prepare()
        self._report("Starting scheduler, DAG processor, API server and triggerer")
        for name in self._components:
            with (self.home / f"{name}.log").open("wb") as log:
                self._processes[name] = subprocess.Popen(
                    [*AIRFLOW, name], env=self.environment, stdout=log, stderr=log, start_new_session=True
                )
        try:
            self._wait("the API server", 180, lambda: self._get("/api/v2/monitor/health") is not None)
            token = self.token_of(next(iter(self._users), ""))
        except BaseException:
            self.stop()
            raise
        self._headers = {"Authorization": f"Bearer {token}"}
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def token_of(self, user: str) -> str:
        """A token of a user; of anybody, if everybody is an admin."""
        if not self._users:
            return str(self._get("/auth/token")["access_token"])
        return str(self._call("POST", "/auth/token", {"username": user, "password": user})["access_token"])

    def stop(self) -> None:
        """Stop all processes and what they started."""
        for number, pause in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            for process in self._processes.values():
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    continue
            end = time.monotonic() + pause
            while time.monotonic() < end and any(process.poll() is None for process in self._processes.values()):
                time.sleep(0.1)
        self._processes.clear()

    def wait_for(self, run: DagRun, timeout_s: float) -> str:
        """Wait until a run has ended; its state."""
        self._wait(f"{run.run_id} to end", timeout_s, lambda: run.state in {"success", "failed"})
        return run.state

    def trigger(self, dag_id: str, **conf: Any) -> DagRun:
        """Trigger a DAG, once it is known."""
        self._wait(f"the DAG {dag_id} to be known", 120, lambda: self._get(f"/api/v2/dags/{dag_id}") is not None)
        self._report(f"Triggering the DAG {dag_id}")
        started = self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})
        return DagRun(self, dag_id, started["dag_run_id"])

    def _wait(self, what: str, timeout_s: float, done: Callable[[], bool]) -> None:
        end = time.monotonic() + timeout_s
        while not done():
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if dead or time.monotonic() > end:
                raise RuntimeError(
                    f"Waiting for {what}: {self._ended(dead[0])}"
                    if dead
                    else f"Waiting for {what}: not after {timeout_s:.0f} s; see {self.home}/*.log"
                )
            time.sleep(0.5)

    def _ended(self, name: str) -> str:
        last = (self.home / f"{name}.log").read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join([f"{name} ended with {self._processes[name].returncode}; the end of {self.home}/{name}.log:", *last])

    def _get(self, path: str) -> Any:
        try:
            return self._call("GET", path)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        except (urllib.error.URLError, ConnectionError):
            return None

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({"Content-Type": "application/json"} if data else {})
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)


class DagRun:
    """One run of a DAG."""

    def __init__(self, airflow: LiveAirflow, dag_id: str, run_id: str) -> None:
        self._airflow = airflow
        self.run_id = run_id
        self._path = f"/api/v2/dags/{dag_id}/dagRuns/{urllib.request.quote(run_id, safe='')}"

    @property
    def state(self) -> str:
        """Airflow's state of the run."""
        return str(self._airflow._get(self._path)["state"])

    def task_state(self, task_id: str) -> str | None:
        """Airflow's state of a task in the run."""
        return self._airflow._get(f"{self._path}/taskInstances/{task_id}")["state"]

    def tries(self, task_id: str) -> list[str]:
        """States of all tries of a task, in order."""
        found = self._airflow._get(f"{self._path}/taskInstances/{task_id}/tries")["task_instances"]
        return [one["state"] for one in sorted(found, key=lambda one: one["try_number"])]

    def returned(self, task_id: str) -> Any:
        """What a task returned."""
        path = f"{self._path}/taskInstances/{task_id}/xcomEntries/return_value?deserialize=true"
        return self._airflow._get(path)["value"]

    def set_task_state(self, task_id: str, state: str) -> None:
        """What "mark as" does in the UI."""
        self._airflow._call("PATCH", f"{self._path}/taskInstances/{task_id}", {"new_state": state})

    def answer(self, task_id: str, option: str) -> None:
        """What choosing an option under "Required Actions" does in the UI."""
        path = f"{self._path}/taskInstances/{task_id}/-1/hitlDetails"
        self._airflow._call("PATCH", path, {"chosen_options": [option], "params_input": {}})

    def question(self, task_id: str) -> dict[str, Any]:
        """What a task asks."""
        return self._airflow._get(f"{self._path}/taskInstances/{task_id}/-1/hitlDetails")

    def clear_task(self, task_id: str) -> None:
        """What "clear" with downstream tasks does in the UI."""
        dag_id = self._path.split("/")[4]
        body = {
            "dry_run": False,
            "task_ids": [task_id],
            "dag_run_id": self.run_id,
            "include_downstream": True,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self._airflow._call("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", body)

    def log(self, task_id: str, try_number: int) -> str:
        """Log of one try, as plain text."""
        path = f"{self._path}/taskInstances/{task_id}/logs/{try_number}?full_content=true"
        return json.dumps(self._airflow._get(path))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()

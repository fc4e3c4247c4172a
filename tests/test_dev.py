"""``dev.py``: which tests its commands run."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def dev():
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_selected_is_what_pytest_gets(dev):
    assert dev.selection(["tests/spark", "-k", "stop"]) == ["tests/spark", "-k", "stop"]
    assert dev.selection(["--fast", "-x"]) == [*dev.FAST, "-x"]
    assert "-n" in dev.selection([])


def test_every_variable_that_makes_tests_longer_is_in_the_matrix_with_the_files_that_read_it(dev):
    reads = re.compile(r"os\.environ\.get\(\"(\w+)\"")
    crashes = (ROOT / "tests" / "protocol" / "crash" / "thinned.py").read_text()
    found = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        text += crashes if re.search(r"^from protocol\.crash\.thinned ", text, re.MULTILINE) else ""
        for name in set(reads.findall(text)) - set(os.environ):
            found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    listed = {}
    for variables, paths in dev.MATRIX.values():
        for name in variables:
            listed.setdefault(name, set()).update(paths)
    assert listed == found


def test_the_matrix_is_run_as_a_whole_or_by_name(dev):
    assert dev.chosen_of_matrix([]) == [*dev.MATRIX, *(f"python-{version}" for version in dev.PYTHONS)]
    assert dev.chosen_of_matrix(["--only", "upserts"]) == ["upserts"]
    with pytest.raises(SystemExit):
        dev.chosen_of_matrix(["--only", "no such run"])


@pytest.mark.parametrize("failed", [False, True])
def test_a_matrix_says_what_it_ran_and_fails_if_one_of_them_failed(dev, monkeypatch, capsys, tmp_path, failed):
    (tmp_path / "test_it.py").write_text(f"import os\n\ndef test_it():\n    assert os.environ['TIMES'] == '{int(failed)}'\n")
    runs = {"short": ({"TIMES": "0"}, [str(tmp_path / "test_it.py")]), "long": ({"TIMES": "1"}, ["--version"])}
    monkeypatch.setattr(dev, "MATRIX", runs)
    monkeypatch.setattr(dev, "PYTHONS", ())
    monkeypatch.setattr(dev, "setup", lambda: None)
    try:
        dev.matrix([])
        code = 0
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().out
    assert code == int(failed)
    assert ("short" in said, "long" in said, "FAILED" in said) == (True, True, failed)


def test_the_fast_tests_start_neither_spark_nor_airflow(dev):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *dev.FAST]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = {line.split("::")[0] for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line}
    folders = {folder for path in paths for folder in path.split("/")[1:-1]}
    assert {"checkpoint", "transforms"} <= folders
    assert not folders & {"spark", "airflow", "crash", "races", "histories"}


def test_a_python_that_is_not_there_is_said_and_is_no_success(dev, capsys):
    assert dev.on_other_python("3.99") == 1
    assert "There is no Python 3.99 on this machine" in capsys.readouterr().out

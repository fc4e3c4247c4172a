"""No module of the package imports itself by way of others, not in functions and not for types either."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import airflow_ckpt_provider

ROOT = Path(airflow_ckpt_provider.__file__).parent
NAME = ROOT.name


def imports():
    """What each module imports, wherever in it."""
    files = {
        ".".join((NAME, *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in ROOT.rglob("*.py")
    }
    found = {}
    for module, path in files.items():
        named = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom) and node.module]
        wanted = {(node.module, alias.name) for node in named for alias in node.names if node.module.startswith(NAME)}
        found[module] = {f"{base}.{name}" if f"{base}.{name}" in files else base for base, name in wanted} - {module}
    return found


def test_nothing_is_imported_in_a_circle():
    graph = imports()
    assert len(graph) > 100
    assert "airflow_ckpt_provider.write.attempt" in graph["airflow_ckpt_provider.operators.stage"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None

"""What import-linter does not look at: circles of imports, lazy ones and those for types included, and the size of the ports."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import airflow_ckpt_provider

PORTS = {"Protocol", "ABC"}

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
        targets = {f"{base}.{name}" if f"{base}.{name}" in files else base for base, name in wanted} - {module}
        # Whoever imports a module imports the packages first that it lies in, but for those that are being imported.
        found[module] = targets | {package for target in targets for package in packages_of(target)} - {
            module,
            *packages_of(module),
        }
    return found


def packages_of(module):
    parts = module.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def test_nothing_is_imported_in_a_circle():
    graph = imports()
    assert len(graph) > 100
    assert "airflow_ckpt_provider.write.attempt" in graph["airflow_ckpt_provider.operators.stage"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


@pytest.mark.parametrize("port", ["table", "state", "mode", "storage", "writer"])
def test_the_ports_of_a_table_have_at_most_twelve_members_and_are_typed(port):
    tree = ast.parse((ROOT / "tables" / f"{port}.py").read_text())
    ports = [node for node in tree.body if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & PORTS]
    assert ports
    for node in ports:
        members = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AnnAssign)]
        assert len([one for one in members if getattr(one, "name", "") != "__init__"]) <= 12, node.name
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Any"]

"""The papers for whoever carries on: what they point to is there, and what they list is what there is."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest

import airflow_ckpt_provider

ROOT = Path(airflow_ckpt_provider.__file__).parents[1]

PAPERS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob(".github/**/*.md")),
    ROOT / "tests" / "README.md",
]

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
DOTTED = re.compile(r"(?<![\w./])airflow_ckpt_provider(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"(?<![\w./])(?:airflow_ckpt_provider|tests|docs|benchmarks|example_dags|\.ci|\.github)/[\w./*-]*")
COMMAND = re.compile(r"dev\.py ([a-z]+)")


def problems_in(text: str, folder: Path = ROOT) -> list[str]:
    """What a paper that stands in ``folder`` names and is not there."""
    links = [link for link in LINK.findall(CODE.sub("", text)) if not leads(link, text, folder)]
    dotted = [name for name in DOTTED.findall(text) if not is_there(name)]
    paths = [path for code in CODE.findall(text) for path in PATH.findall(code) if not any(ROOT.glob(path.rstrip("/.")))]
    commands = [f"dev.py {name}" for name in COMMAND.findall(text) if name not in commands_there()]
    return links + dotted + paths + commands


def leads(link: str, text: str, folder: Path) -> bool:
    """Whether a link goes somewhere: relative ones to a file, and to a heading in it."""
    if link.startswith(("https://", "http://", "mailto:")):
        return True
    path, _, heading = link.partition("#")
    target = folder / path
    if not target.exists():
        return False
    return not heading or heading in headings(target.read_text() if path else text)


def headings(text: str) -> set[str]:
    """The headings of a paper, as links name them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@functools.cache
def is_there(name: str) -> bool:
    """Whether there is a module of this dotted name, or a class, function or constant of it, or a member of such a class."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        source = source_of(parts[:count])
        if source is not None:
            body = ast.parse(source.read_text()).body
            for part in parts[count:]:
                members = members_of(body, part)
                if members is None:
                    return False
                body = members
            return True
    return False


def source_of(parts: list[str]) -> Path | None:
    """The file of a module of this repository."""
    place = ROOT.joinpath(*parts)
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return source if source.is_file() else None


def members_of(body: list[ast.stmt], name: str) -> list[ast.stmt] | None:
    """What is inside of the thing of this name that statements define, or take from another module; None if none of them does."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            taken = next((alias.name for alias in node.names if (alias.asname or alias.name) == name), None)
            source = None if taken is None else source_of(str(node.module).split("."))
            if taken is not None:
                return [] if source is None else members_of(ast.parse(source.read_text()).body, taken) or []
        elif name in defined(node):
            return node.body if isinstance(node, ast.ClassDef) else []
    return None


def defined(node: ast.stmt) -> set[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return set()


@functools.cache
def commands_there() -> set[str]:
    """The commands of ``dev.py``."""
    (listed,) = re.findall(r'"command", choices=(\[[^\]]*\])', (ROOT / "dev.py").read_text())
    return set(ast.literal_eval(listed))


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: str(paper.relative_to(ROOT)))
def test_whatever_a_paper_points_to_is_there(paper):
    assert problems_in(paper.read_text(), paper.parent) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "[the map](docs/map.md)",
        "[limits](README.md#no-such-heading)",
        "[below](#no-such-heading)",
        "`airflow_ckpt_provider.write.no_such_module`",
        "`airflow_ckpt_provider.checkpoint.documents.NoSuchClass`",
        "`airflow_ckpt_provider.checkpoint.documents.Header.no_such_member`",
        "see airflow_ckpt_provider.nowhere",
        "`tests/no_such_folder/test_it.py`",
        "`airflow_ckpt_provider/no_such_file.py`",
        "`docs/no_such_*.md`",
        "```\ncat tests/no_such_file.py\n```",
        "`python3 dev.py nothing`",
    ],
)
def test_whatever_is_not_there_is_found(wrong):
    (named,) = problems_in(f"# A heading\n\nBefore it, {wrong} and behind it.\n")
    assert named in wrong


def test_whatever_is_there_is_taken():
    right = """# A heading

    [the promises](docs/guarantees.md#promises-and-how-they-were-tried), [above](#a-heading), [elsewhere](https://example.org/x),
    `airflow_ckpt_provider.checkpoint`, `airflow_ckpt_provider.checkpoint.documents.Header.stream`, `tests/unit/checkpoint`,
    `airflow_ckpt_provider.sources.Files`,
    `tests/**/test_*memory.py`, `airflow_ckpt_provider/spark/log4j2.properties`, `python3 dev.py check`
    """
    assert problems_in(right) == []


def test_the_metrics_that_are_listed_are_those_that_are_emitted():
    source = (ROOT / "airflow_ckpt_provider" / "operators" / "metrics.py").read_text()
    emitted = set(re.findall(r'stats\.(?:incr|timing|gauge)\("(\S+?)"', source))
    listed = re.findall(r"^\| `(checkpoints\.\S+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    assert sorted(emitted) == sorted(listed)


def test_the_architecture_lists_the_layers_in_the_order_in_which_they_are_kept_apart():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    section = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE)
    named = [" | ".join(re.findall(r"`(\w+)`", row)) for row in rows]
    assert [one for one in named if one] == layers

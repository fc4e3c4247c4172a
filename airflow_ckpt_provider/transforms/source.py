"""What a function says, without how it is written down: its syntax tree, or its byte code where its source is not at hand.

Docstrings, annotations, comments and layout are left out. Source counts only if it compiles to the very code that is loaded: a file
may have been edited since it was imported, and two lambdas may stand on one line.
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import marshal
import threading
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

#: Methods that change what they are called on.
_CHANGING = {
    "add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "move_to_end", "pop", "popitem", "popleft",
    "remove", "setdefault", "update",
}  # fmt: skip

#: Decorators that make a task of a function, and leave the function as it is: what they are given is the task's own affair.
_OF_TASKS = {"checkpointed_iceberg", "checkpointed_lance"}

#: Held while a text is parsed: CPython 3.11 counts the depth of all trees that are being built in one number.
_ONE_PARSER = threading.Lock()


class Change(NamedTuple):
    """A name that code assigns to, or whose content it changes.

    :param root: ``CACHE`` of ``CACHE[key] = value``, ``self`` of ``self.seen += 1``.
    :param attribute: the first attribute behind it, if there is one.
    :param by_call: it was changed by a method, such as ``append``, which may mean something else for another kind of object.
    """

    root: str
    attribute: str | None
    by_call: bool


class Import(NamedTuple):
    """An import inside a function, and what is used of it.

    :param of_package: whether ``chains`` begin at the top-level package, as after ``import shop.rules``.
    :param chains: attributes that the function names behind what is imported; empty for the thing itself.
    """

    module: str
    level: int
    of_package: bool
    chains: tuple[tuple[str, ...], ...]


class Sources:
    """Finds the source of functions. Each file is read once."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[list[FunctionNode], set[CodeType]]] = {}
        self._nodes: dict[CodeType, FunctionNode | None] = {}

    def node(self, function: FunctionType) -> FunctionNode | None:
        """The syntax tree of a function; None if its source is not at hand, or not what was loaded."""
        code = function.__code__
        if code not in self._nodes:
            functions, loaded = self._file(code.co_filename, function.__globals__)
            self._nodes[code] = _place(functions, code) if code in loaded else None
        return self._nodes[code]

    def _file(self, name: str, module: dict[str, Any]) -> tuple[list[FunctionNode], set[CodeType]]:
        """The functions of a file, and the code that it compiles to."""
        if name not in self._files:
            linecache.checkcache(name)
            text = "".join(linecache.getlines(name, module))
            try:
                self._files[name] = _understood(text, name)
            except (SyntaxError, ValueError):
                self._files[name] = [], set()
        return self._files[name]


@functools.lru_cache(maxsize=32)
def _understood(text: str, name: str) -> tuple[list[FunctionNode], set[CodeType]]:
    """The functions in the text of a file, and the code that it compiles to: once in a process, until the text is another."""
    functions = [node for node in ast.walk(parsed(text)) if isinstance(node, FunctionNode)]
    return functions, set(nested(compile(text, name, "exec", dont_inherit=True)))


def parsed(text: str) -> ast.Module:
    """The syntax tree of a text."""
    with _ONE_PARSER:
        return ast.parse(text)


def nested(code: CodeType) -> Iterator[CodeType]:
    """``code`` and all code inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


@functools.lru_cache(maxsize=512)
def text_of(node: FunctionNode) -> str:
    """What the function says."""
    # A copy, because the tree of the file is used for other functions too.
    return ast.unparse(ast.fix_missing_locations(_Bare().visit(parsed(ast.unparse(node)))))


def byte_code(code: CodeType, docstring: str | None) -> bytes:
    """What the function does, where there is no source. Differs between versions of Python."""
    constants: list[object] = []
    for number, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            constants.append(byte_code(constant, None))
        elif number == 0 and docstring is not None and constant == docstring:
            constants.append(None)
        else:
            constants.append(repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant))
    facts = [code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable]
    return marshal.dumps([*facts, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount], 2)


def changes(node: FunctionNode) -> set[Change]:
    """Names whose content the function changes."""
    changed = set()
    for part in ast.walk(node):
        change = None
        if isinstance(part, ast.Subscript | ast.Attribute) and not isinstance(part.ctx, ast.Load):
            change = _change(part, by_call=False)
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in _CHANGING:
            change = _change(part.func.value, by_call=True)
        if change is not None:
            changed.add(change)
    return changed


def imports(node: FunctionNode) -> list[Import]:
    """What the function imports when it runs."""
    chains: dict[str, set[tuple[str, ...]]] = {}
    for part in ast.walk(node):
        names = _chain(part)
        if names:
            chains.setdefault(names[0], set()).add(tuple(names[1:]))
    imported = []
    for part in ast.walk(node):
        if isinstance(part, ast.ImportFrom):
            for alias in part.names:
                used = chains.get(alias.asname or alias.name, {()})
                imported.append(
                    Import(
                        part.module or "",
                        part.level,
                        of_package=False,
                        chains=tuple(sorted((alias.name, *chain) for chain in used)),
                    )
                )
        elif isinstance(part, ast.Import):
            for alias in part.names:
                submodules = tuple(alias.name.split(".")[1:])
                if alias.asname is not None:
                    used = {(*submodules, *chain) for chain in chains.get(alias.asname, ())}
                else:
                    used = chains.get(alias.name.partition(".")[0], set())
                imported.append(Import(alias.name, 0, of_package=True, chains=tuple(sorted(used))))
    return sorted(set(imported))


def global_chains(code: CodeType) -> set[tuple[str, ...]]:
    """Global names that code uses, each with the attributes that it names behind it: ``("config", "LIMIT")``."""
    return _chains(code, ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT"))


def enclosed_chains(code: CodeType) -> set[tuple[str, ...]]:
    """The same for variables of enclosing functions."""
    return {chain for chain in _chains(code, ("LOAD_DEREF", "LOAD_CLASSDEREF")) if chain[0] in code.co_freevars}


def _chains(code: CodeType, loads: tuple[str, ...]) -> set[tuple[str, ...]]:
    chains = set()
    for part in nested(code):
        chain: tuple[str, ...] = ()
        for step in dis.get_instructions(part):
            name = step.opname
            if name in {"LOAD_ATTR", "LOAD_METHOD"} and chain:
                chain = (*chain, step.argval)
                continue
            if name in {"CACHE", "NOT_TAKEN"}:
                continue
            if chain:
                chains.add(chain)
            chain = (step.argval,) if isinstance(step.argval, str) and name.startswith(loads) else ()
    return chains


def stored_globals(code: CodeType) -> set[str]:
    """Global names that code assigns or deletes."""
    steps = (step for part in nested(code) for step in dis.get_instructions(part))
    return {step.argval for step in steps if step.opname in {"STORE_GLOBAL", "DELETE_GLOBAL"}}


def stored_cells(code: CodeType) -> set[str]:
    """Variables of enclosing functions that code assigns."""
    steps = (step for part in nested(code) for step in dis.get_instructions(part))
    return {step.argval for step in steps if step.opname in {"STORE_DEREF", "DELETE_DEREF"}} & set(code.co_freevars)


def attributes(code: CodeType) -> set[str]:
    """Names of all attributes, methods and globals that code uses."""
    return {name for part in nested(code) for name in part.co_names}


def _change(target: ast.expr, *, by_call: bool) -> Change | None:
    attribute = None
    while isinstance(target, ast.Attribute | ast.Subscript | ast.Starred):
        attribute = target.attr if isinstance(target, ast.Attribute) else None
        target = target.value
    return Change(target.id, attribute, by_call) if isinstance(target, ast.Name) else None


def _chain(part: ast.AST) -> list[str]:
    names: list[str] = []
    while isinstance(part, ast.Attribute):
        names.insert(0, part.attr)
        part = part.value
    return [part.id, *names] if isinstance(part, ast.Name) else []


def _place(functions: list[FunctionNode], code: CodeType) -> FunctionNode | None:
    """The node that ``code`` was made of."""
    nodes: list[FunctionNode] = []
    for node in functions:
        if isinstance(node, ast.Lambda):
            nodes += [node] if code.co_name == "<lambda>" and _inside(code, node.body) else []
        elif node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            nodes += [node] if first == code.co_firstlineno else []
    # Of lambdas inside each other, the innermost that holds all of the code.
    return min(nodes, key=lambda node: (_end(node)[0] - node.lineno, _end(node)[1] - node.col_offset), default=None)


def _inside(code: CodeType, body: ast.expr) -> bool:
    places = [place for place in code.co_positions() if None not in place and place[2:] != (0, 0)]
    start, end = (body.lineno, body.col_offset), _end(body)
    return bool(places) and all(start <= (p[0], p[2]) and (p[1], p[3]) <= end for p in places)


def _end(node: FunctionNode | ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


class _Bare(ast.NodeTransformer):
    """Takes docstrings, annotations and decorators that make a task out."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self._body(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self._body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        # Its own annotations may be fields.
        fields = {id(part): part.annotation for part in node.body if isinstance(part, ast.AnnAssign)}
        body = [part if id(part) in fields else self.visit(part) for part in node.body]
        node.body = [part for part in body if not _is_text(part)] or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            # It says that the name is local.
            node.annotation = ast.Constant(None)
            return node
        self.generic_visit(node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def _body(self, node: Any) -> ast.AST:  # noqa: ANN401 - whatever has a body
        tasks = [number for number, decorator in enumerate(node.decorator_list, 1) if _makes_a_task(decorator)]
        # Those above it decorate the task.
        node.decorator_list = node.decorator_list[max(tasks, default=0) :]
        if hasattr(node, "type_params"):
            node.type_params = []
        self.generic_visit(node)
        node.body = [part for part in node.body if not _is_text(part)] or [ast.Pass()]
        return node  # type: ignore[no-any-return]


def _makes_a_task(decorator: ast.expr) -> bool:
    chain = _chain(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return bool(chain) and chain[-1] in _OF_TASKS


def _is_text(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)

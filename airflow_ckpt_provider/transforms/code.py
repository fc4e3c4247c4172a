"""Canonical forms of code: functions and classes of the user's own by what they say and use, those of libraries by their version.

What a function uses: its defaults, the variables that it closes over, and the globals that it names, each as far as it names
them: of a module of the user's own the attribute, of one of a library the version. Methods count with the class they belong to.

Names that the code assigns while it runs do not count, nor do containers that it changes: they are memories of what was done
before. A method counts as run if something that runs names it; so a setter that the DAG file calls does not hide what it set.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import MutableMapping, MutableSequence, MutableSet
from typing import TYPE_CHECKING, Any

from airflow_ckpt_provider.transforms import source
from airflow_ckpt_provider.transforms.class_fields import fields_of
from airflow_ckpt_provider.transforms.values import Held, ignored, leaf, parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_ckpt_provider.transforms.origin import Origins
    from airflow_ckpt_provider.transforms.values import Form

#: Names of a module that say where it lies and what it is called.
_PLACES = {"__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__name__", "__package__", "__path__", "__spec__"}

#: Methods that make an object: what they assign is what it is.
_MAKERS = {
    "__init__", "__init_subclass__", "__new__", "__post_init__", "__attrs_post_init__", "__set_name__", "__setattr__",
    "__setstate__",
}  # fmt: skip

#: Members of classes, beside methods, whose names begin and end with underscores and that count.
_TELLING = {"__struct_fields__", "__struct_defaults__", "__attrs_attrs__", "__slots__"}

#: What Python makes of a class by itself.
_MADE = (types.MemberDescriptorType, types.GetSetDescriptorType)


class CodeForms:
    """Forms of functions and classes, in one look at all that a function uses.

    :param settled: owners, by id, and the names in them that the code assigns, as an earlier look found them.
    :param named: all names that code which runs uses, as an earlier look found them.
    """

    def __init__(
        self, origins: Origins, sources: source.Sources, settled: frozenset[tuple[int, str]], named: frozenset[str]
    ) -> None:
        self._origins = origins
        self._sources = sources
        self._settled = settled
        self._named = named
        self._methods: dict[int, tuple[type, str]] = {}
        #: Attributes of objects of a class that do not count.
        self._dropped: dict[type, set[str]] = {}
        #: What this look has found.
        self.assigned: set[tuple[int, str]] = set()
        self.names: set[str] = set()

    def form(self, value: Any) -> Form | None:  # noqa: ANN401, C901, PLR0911 - any value; one line for each kind of code
        """The form of code; None for what is none."""
        if isinstance(value, functools.partial):
            return _partial(value)
        if self._is_exported(value):
            return parts(b"library method", self._library(value))
        if isinstance(value, types.MethodType):
            self.names.add(value.__func__.__name__)
            return parts(b"method", Held("self", value.__self__), Held(value.__func__.__name__, value.__func__))
        if isinstance(value, types.FunctionType):
            return self._function(value) if self._origins.of_function(value) is None else self._library_function(value)
        if isinstance(value, functools._lru_cache_wrapper):  # noqa: SLF001 - it has no public name
            return parts(b"cached", Held(_name(value), value.__wrapped__))
        if isinstance(value, staticmethod | classmethod):
            return parts(type(value).__name__.encode(), Held(_name(value), value.__func__))
        if isinstance(value, property):
            return parts(b"property", Held("get", value.fget), Held("set", value.fset), Held("delete", value.fdel))
        if isinstance(value, functools.cached_property):
            return parts(b"cached property", Held("get", value.func))
        if isinstance(value, functools.partialmethod):
            return parts(
                b"partialmethod", Held("function", value.func), Held("arguments", value.args), Held("names", value.keywords)
            )
        if isinstance(value, type):
            return self._class(value) if self._origins.of(value) is None else parts(b"class", self._library(value))
        if _is_native(value):
            return self._native(value)
        return _spark_function(value)

    def keeps(self, value: object, name: str) -> bool:
        """Whether an attribute of an object counts: not one that the code assigns, or that remembers what a property returned."""
        kind = type(value)
        if kind not in self._dropped:
            cached = {
                at for base in kind.__mro__ for at, member in vars(base).items() if isinstance(member, functools.cached_property)
            }
            owners = {id(base) for base in kind.__mro__}
            self._dropped[kind] = cached | {at for owner, at in self._settled if owner in owners}
        return name not in self._dropped[kind] and (id(value), name) not in self._settled

    # -- functions ----------------------------------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> Form:
        code, node = function.__code__, self._sources.node(function)
        owner, name = self._methods.get(id(function), (None, ""))
        runs = owner is None or name in self._named or (name.startswith("__") and name.endswith("__") and name not in _MAKERS)
        if runs:
            self.names |= source.attributes(code)
            self._note(function, node, owner)
        yield b"function"
        yield source.byte_code(code, function.__doc__) if node is None else source.text_of(node).encode()
        arguments = code.co_varnames[: code.co_argcount][-len(function.__defaults__ or ()) :] if function.__defaults__ else ()
        for argument, default in [
            *zip(arguments, function.__defaults__ or (), strict=True),
            *_sorted(function.__kwdefaults__ or {}),
        ]:
            yield argument.encode()
            yield Held(argument, default)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if (id(cell), "") not in self._settled and _is_filled(cell):
                yield variable.encode()
                yield Held(variable, cell.cell_contents)
        for attribute, value in _sorted(vars(function)):
            if (id(function), attribute) not in self._settled:
                yield attribute.encode()
                yield Held(attribute, value)
        yield from self._named_by(function)
        for wanted in source.imports(node) if node is not None else ():
            yield from self._imported(function, wanted)

    def _named_by(self, function: types.FunctionType) -> Form:
        """Globals, and what is named of modules that are no globals."""
        code = function.__code__
        for chain in sorted(source.global_chains(code)):
            yield from self._global(function.__globals__, chain)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for chain in sorted(source.enclosed_chains(code)):
            if _is_filled(cells[chain[0]]) and isinstance(cells[chain[0]].cell_contents, types.ModuleType):
                yield ".".join(chain).encode()
                yield from self._reached(cells[chain[0]].cell_contents, chain[0], chain[1:])

    def _note(self, function: types.FunctionType, node: source.FunctionNode | None, owner: type | None) -> None:
        """Remember what the function assigns."""
        code, names = function.__code__, function.__globals__
        self.assigned |= {(id(names), name) for name in source.stored_globals(code)}
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self.assigned |= {(id(cells[name]), "") for name in source.stored_cells(code)}
        used = {chain[0] for chain in source.global_chains(code)}
        first = code.co_varnames[0] if code.co_argcount else None
        for root, attribute, by_call in source.changes(node) if node is not None else ():
            if owner is not None and root == first:
                if attribute is not None:
                    self.assigned.add((id(owner), attribute))
            elif root in cells and _is_filled(cells[root]):
                self._note_change(cells[root].cell_contents, attribute, by_call, (id(cells[root]), ""))
            elif root in used and root in names:
                self._note_change(names[root], attribute, by_call, (id(names), root))

    def _note_change(self, value: Any, attribute: str | None, by_call: bool, name: tuple[int, str]) -> None:  # noqa: ANN401, FBT001
        if attribute is not None:
            self.assigned.add((id(vars(value)) if isinstance(value, types.ModuleType) else id(value), attribute))
        elif not by_call or isinstance(value, MutableMapping | MutableSequence | MutableSet):
            self.assigned.add(name)

    def _global(self, names: dict[str, Any], chain: tuple[str, ...]) -> Form:
        if chain[0] in _PLACES or (id(names), chain[0]) in self._settled or chain[0] not in names:
            return
        yield ".".join(chain).encode() if isinstance(names[chain[0]], types.ModuleType) else chain[0].encode()
        yield from self._reached(names[chain[0]], chain[0], chain[1:])

    def _reached(self, value: Any, label: str, chain: tuple[str, ...]) -> Form:  # noqa: ANN401 - what a global name stands for
        """What is behind the attributes of a module that code names."""
        for attribute in chain:
            if not isinstance(value, types.ModuleType) or self._origins.of(value) is not None:
                break
            if attribute in _PLACES or (id(vars(value)), attribute) in self._settled or not hasattr(value, attribute):
                return
            value, label = getattr(value, attribute), f"{label}.{attribute}"
        if isinstance(value, types.ModuleType):
            yield (self._origins.of(value) or "").encode()
        else:
            yield Held(label, value)

    def _imported(self, function: types.FunctionType, wanted: source.Import) -> Form:
        try:
            name = importlib.util.resolve_name("." * wanted.level + wanted.module, function.__globals__.get("__package__") or "")
        except ImportError:
            return
        library = self._origins.of_name(name)
        if library is not None:
            yield library.encode()
            return
        try:
            module = importlib.import_module(name)
        except Exception:  # noqa: BLE001 - a module of the user's that only the executors have; the code says its name
            return
        top = importlib.import_module(name.partition(".")[0]) if wanted.of_package else module
        for chain in wanted.chains:
            if chain and not hasattr(top, chain[0]):
                try:
                    importlib.import_module(f"{name}.{chain[0]}")
                except Exception:  # noqa: BLE001, S112 - as above
                    continue
            yield from self._reached(top, top.__name__, chain)

    def _library_function(self, function: types.FunctionType) -> Form:
        """A library's function: its name and version, and what the user gave to it, if it was made by a decorator."""
        yield b"library function"
        yield self._library(function)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if _is_filled(cell) and variable != "cache_token" and not _remembers(cell.cell_contents):
                yield variable.encode()
                yield Held(variable, cell.cell_contents)

    def _is_exported(self, value: Any) -> bool:  # noqa: ANN401 - any value
        """Whether a library offers this method of an object of its own as a function, as ``random`` does with ``random.random``."""
        owner = getattr(value, "__self__", None) if isinstance(value, types.MethodType | types.BuiltinMethodType) else None
        module = None if owner is None or isinstance(owner, type) else sys.modules.get(type(owner).__module__)
        return module is not None and self._origins.of(module) is not None and getattr(module, value.__name__, None) == value

    def _native(self, value: Any) -> Form:  # noqa: ANN401 - a callable that is not written in Python
        yield b"native function"
        yield self._library(value)
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            yield Held("self", owner)

    def _library(self, value: Any) -> bytes:  # noqa: ANN401 - a function or a class
        version = self._origins.of_function(value) if isinstance(value, types.FunctionType) else self._origins.of(value)
        return f"{version} {_name(value)}".encode()

    # -- classes ------------------------------------------------------------------------------------------------------

    def _class(self, kind: type) -> Form:
        yield b"class"
        yield kind.__name__.encode()
        for base in kind.__bases__:
            yield Held(base.__name__, base)
        if issubclass(kind, enum.Enum):
            yield Held("members", {name: member.value for name, member in kind.__members__.items()})
        yield from fields_of(kind)
        generated = dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__") or hasattr(kind, "_fields")
        for name, member in _sorted(dict(vars(kind))):
            if self._is_member(kind, name, member, generated=generated):
                function = getattr(member, "__func__", member)
                for part in (function, *(getattr(member, at, None) for at in ("fget", "fset", "fdel", "func"))):
                    self._methods[id(part)] = (kind, name)
                yield name.encode()
                yield Held(name, member)

    def _is_member(self, kind: type, name: str, member: Any, *, generated: bool) -> bool:  # noqa: ANN401 - any
        if (id(kind), name) in self._settled or isinstance(member, _MADE) or ignored(member) or name.startswith("_abc_"):
            return False
        function = getattr(member, "__func__", member)
        if isinstance(function, types.FunctionType):
            file = function.__code__.co_filename
            return not (generated and file.startswith("<")) and self._origins.of_function(function) is None
        if name.startswith("__") and name.endswith("__"):
            return name in _TELLING
        if issubclass(kind, enum.Enum):
            return not name.startswith("_") and name not in kind.__members__
        return not (name == "_fields" or type(member).__name__ == "_tuplegetter")


def _partial(value: functools.partial[Any]) -> Form:
    yield b"partial"
    yield Held(_name(value.func), value.func)
    for number, argument in enumerate(value.args, 1):
        yield Held(f"argument {number}", argument)
    for name, argument in _sorted(value.keywords):
        yield name.encode()
        yield Held(name, argument)


def _is_native(value: Any) -> bool:  # noqa: ANN401 - any value
    kind = type(value)
    if kind.__name__ in {"cython_function_or_method", "fused_cython_function", "ufunc"}:
        return True
    return isinstance(
        value,
        types.BuiltinFunctionType | types.MethodDescriptorType | types.MethodWrapperType | types.WrapperDescriptorType
        | types.ClassMethodDescriptorType,
    )  # fmt: skip


def _spark_function(value: Any) -> Form | None:  # noqa: ANN401 - any value
    """A function that was made for Spark; what Spark has made of it in this session does not count."""
    kind = type(value)
    if kind.__name__ != "UserDefinedFunction" or not kind.__module__.startswith("pyspark."):
        return None
    returns = value._returnType  # noqa: SLF001 - the public attribute asks a session to read it
    kept = returns if isinstance(returns, str) else returns.json()
    return parts(b"spark function", Held("func", value.func), leaf((kept, value.evalType, value.deterministic)))


def _remembers(value: object) -> bool:
    """Whether a decorator of a library keeps this to be faster next time."""
    return type(value).__name__ == "WeakKeyDictionary"


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _name(value: Any) -> str:  # noqa: ANN401 - a function or a class
    return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__qualname__)


def _sorted(members: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return iter(sorted(members.items(), key=lambda member: member[0]))

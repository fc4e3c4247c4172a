"""Where code comes from: the user's own, which counts by what it says, or a library's, which counts by its version.

Nothing here depends on the name of a module of the user's: Airflow gives DAG files other names in each process.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import site
import sys
import sysconfig
from types import ModuleType
from typing import Any

from airflow_ckpt_provider import __name__ as OURS  # noqa: N812 - a constant
from airflow_ckpt_provider import __version__

#: What a module of Python's own counts as: the text of the code that calls it has its name.
PYTHON = "python"


class Origins:
    """Tells the user's own code from that of libraries.

    :param package: top-level package of the function that is fingerprinted, which is the user's own even where it is installed.
    """

    def __init__(self, package: str) -> None:
        self._package = package

    def of_module(self, name: str, file: str | None) -> str | None:
        """The library that a module belongs to, with its version.

        :param file: where the module lies; None for one that is built in, or made by ``exec``.
        :returns: ``numpy 2.4.6``, or ``python``; None if it is the user's own.
        """
        top = name.partition(".")[0]
        if top == OURS:
            return f"{OURS} {__version__}"
        if top == self._package and top not in sys.stdlib_module_names and (file is None or file.endswith(".py")):
            # What is compiled does not say what it does.
            return None
        if file is None:
            return PYTHON if top in sys.stdlib_module_names else None
        place = os.path.realpath(file)
        if any(place.startswith(folder) for folder in _library_folders()):
            return _version(top, place)
        return PYTHON if place.startswith(_python_folders()) else None

    def of_function(self, function: Any) -> str | None:  # noqa: ANN401 - a Python function
        """The same for a Python function, by the file that its code was read from."""
        file = function.__code__.co_filename
        module = function.__globals__.get("__name__") or ""
        generated = file.startswith("<")
        return self.of_module(module, function.__globals__.get("__file__") if generated else file)

    def of(self, thing: Any) -> str | None:  # noqa: ANN401 - a class, or a callable that is not written in Python
        """The same for anything else that knows its module."""
        if isinstance(thing, ModuleType):
            return self.of_module(thing.__name__, _file(thing))
        name = getattr(thing, "__module__", None)
        if not isinstance(name, str):
            return PYTHON
        module = sys.modules.get(name)
        return self.of_module(name, None if module is None else _file(module))

    def of_name(self, name: str) -> str | None:
        """The same for a module that may not have been imported; it is not imported for this."""
        top = name.partition(".")[0]
        if name in sys.modules:
            return self.of(sys.modules[name])
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            return PYTHON if top in sys.stdlib_module_names else None
        return self.of_module(name, _place(spec))


def package_of(function: Any) -> str:  # noqa: ANN401 - any callable
    """Top-level package of a function, of the class of a callable object, or of what a partial calls."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__module__", None) or type(function).__module__
    return str(name).partition(".")[0]


def _file(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return file
    # A namespace package has folders and no file.
    return next(iter(getattr(module, "__path__", ())), None)


def _place(spec: importlib.machinery.ModuleSpec) -> str | None:
    if spec.has_location:
        return spec.origin
    return next(iter(spec.submodule_search_locations or ()), None)


@functools.cache
def _library_folders() -> tuple[str, ...]:
    """Folders of installed distributions."""
    paths = sysconfig.get_paths()
    folders = {paths["purelib"], paths["platlib"], site.getusersitepackages(), *site.getsitepackages()}
    folders |= {entry for entry in sys.path if os.path.basename(entry) in {"site-packages", "dist-packages"}}
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in sorted(folders))


@functools.cache
def _python_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], os.path.dirname(os.__file__)}
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in sorted(folders))


@functools.cache
def _version(top: str, place: str) -> str:
    """Name and version of the installed distribution that has this file; without a version for one that nothing tells of."""
    try:
        # Mostly a distribution is called as its package is.
        near = importlib.metadata.distribution(top)
        if _has(near, place):
            return f"{near.metadata['Name']} {near.version}"
    except importlib.metadata.PackageNotFoundError:
        pass
    names = dict.fromkeys(_distributions().get(top, ()))
    distributions = [importlib.metadata.distribution(name) for name in sorted(names)]
    if len(distributions) > 1:
        distributions = [distribution for distribution in distributions if _has(distribution, place)] or distributions
    return ", ".join(f"{distribution.metadata['Name']} {distribution.version}" for distribution in distributions) or top


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


def _has(distribution: importlib.metadata.Distribution, place: str) -> bool:
    root = os.path.realpath(str(distribution.locate_file("")))
    if not place.startswith(os.path.join(root, "")):
        return False
    inside = os.path.relpath(place, root).replace(os.sep, "/")
    files = distribution.files
    return files is None or any(str(file) == inside or str(file).startswith(f"{inside}/") for file in files)

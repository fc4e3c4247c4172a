"""Getting the user's code and ours to executors.

A function from a DAG file cannot be pickled by name: Airflow loads DAG files under a mangled module name that no executor can
import. So functions of modules that are not installed packages travel by value, with all such modules they use. Our own
package travels as a zip file, so that executors run the very version that the task runs.
"""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_ckpt_provider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def dumps(value: object) -> bytes:
    """Pickle ``value`` for executors, with code of modules that are not installed there by value."""
    from pyspark import cloudpickle

    with contextlib.ExitStack() as stack:
        for module in _loose_modules():
            if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        return cloudpickle.dumps(value)  # type: ignore[no-any-return]


def package_zip(folder: Path) -> Path:
    """A zip file of this package, for executors."""
    package = Path(airflow_ckpt_provider.__file__).parent
    target = folder / f"airflow_ckpt_provider-{airflow_ckpt_provider.__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*.py")):
            archive.write(file, Path(package.name) / file.relative_to(package))
    return target


@contextlib.contextmanager
def zipped_package() -> Iterator[Path]:
    """``package_zip`` in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="airflow-ckpt-") as folder:
        yield package_zip(Path(folder))


def _loose_modules() -> list[ModuleType]:
    """Imported modules that come from a file and from no installed package: DAG files and what lies beside them."""
    paths = sysconfig.get_paths()
    installed = tuple({str(Path(paths[name]).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    own = str(Path(airflow_ckpt_provider.__file__).resolve().parent)
    loose = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file or module.__name__ == "__main__":
            continue
        path = str(Path(file).resolve())
        if not path.startswith((*installed, own)) and "site-packages" not in path and "dist-packages" not in path:
            loose.append(module)
    return loose

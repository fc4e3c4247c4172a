"""Getting the user's code and ours to executors.

A function from a DAG file cannot be pickled by name: Airflow loads DAG files under a mangled module name that no executor can
import. So functions of modules that are not installed packages travel by value, with all such modules they use. Our own
package travels as a zip file, so that executors run the very version that the task runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_ckpt_provider

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import SparkSession


def dumps(value: object) -> bytes:
    """Pickle ``value`` for executors, with code of modules that are not installed there by value."""
    from pyspark import cloudpickle

    with contextlib.ExitStack() as stack:
        for module in _loose_modules():
            if module.__name__ not in cloudpickle.list_registry_pickle_by_value():  # type: ignore[no-untyped-call]
                cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        return cloudpickle.dumps(value)  # type: ignore[no-any-return, no-untyped-call]


def ship_package(spark: SparkSession) -> None:
    """Put this package on the executors of ``spark``; again, if they have it, changes nothing."""
    from pyspark import SparkFiles

    if is_connect(spark):
        # The server gets a copy at once.
        with tempfile.TemporaryDirectory(prefix="airflow-ckpt-") as folder:
            spark.addArtifacts(str(package_zip(Path(folder))), pyfile=True)
        return
    # Executors that start later fetch it too, so it lies in a folder that lives as long as the Spark context.
    kept = Path(SparkFiles.getRootDirectory()) / "airflow-ckpt"
    if kept.exists():
        # A context takes a name once.
        return
    kept.mkdir()
    try:
        spark.addArtifacts(str(package_zip(kept)), pyfile=True)
    except BaseException:
        shutil.rmtree(kept)
        raise


def package_zip(folder: Path) -> Path:
    """A zip file of this package, for executors; its name tells its content, so that Spark never sees two under one name."""
    package = Path(airflow_ckpt_provider.__file__).parent
    files = {file.relative_to(package): file.read_bytes() for file in sorted(package.rglob("*.py"))}
    digest = hashlib.sha256(repr(files).encode()).hexdigest()[:12]
    target = folder / f"airflow_ckpt_provider-{airflow_ckpt_provider.__version__}-{digest}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"{package.name}/{name.as_posix()}"), content, zipfile.ZIP_DEFLATED)
    return target


def is_connect(spark: object) -> bool:
    """Connect sessions are of a class of their own, whose import needs packages that a classic session does not."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _loose_modules() -> list[ModuleType]:
    """Imported modules that come from a file and from no installed package: DAG files and what lies beside them."""
    paths = sysconfig.get_paths()
    installed = tuple({str(Path(paths[name]).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    package = str(Path(airflow_ckpt_provider.__file__).resolve().parent) + os.sep
    loose = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # A module that is registered under a name that is not its own cannot be told apart by name.
        if not file or name == "__main__" or getattr(module, "__name__", None) != name:
            continue
        path = str(Path(file).resolve())
        if not path.startswith((*installed, package)) and "site-packages" not in path and "dist-packages" not in path:
            loose.append(module)
    return loose

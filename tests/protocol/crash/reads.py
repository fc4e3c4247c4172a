"""Whether a process has looked at a file since its last effect.

A process that is suspended behind one effect and one that is suspended before the next are in one place if nothing is read in
between: whatever others do meanwhile, both go on with what they knew. So one of them is enough. What counts is more than what may
matter: any byte that any thread of the process reads from a file; and the ``QUESTIONS`` for names, sizes or existence, which read
none. What comes through a socket is not seen.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

#: What asks for names, sizes or existence, by module and class.
QUESTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "obstore": ("", ("head", "list", "list_with_delimiter")),
    "pyiceberg.io.pyarrow": ("PyArrowFile", ("exists", "__len__")),
    "lance.dataset": ("LanceDataset", ("latest_version", "versions", "get_transactions")),
}


class Reads:
    """Counts what this process reads."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/io", os.O_RDONLY)
        self._questions = 0
        self.forget()

    def forget(self) -> None:
        """Count from now on."""
        self._begin = self._count()

    def any(self) -> bool:
        """Whether anything was read since then."""
        # One more is the look at the count itself.
        return self._count() != self._begin + 1

    def count_questions(self, module: ModuleType) -> None:
        """Count from now on what is asked through a module."""
        name, questions = QUESTIONS[module.__name__]
        owner = getattr(module, name) if name else module
        for question in questions:
            original = getattr(owner, question)
            if isinstance(original, property):
                setattr(owner, question, property(self._counted(original.fget)))
            else:
                setattr(owner, question, self._counted(original))

    def _counted(self, original: Any) -> Any:
        @functools.wraps(original)
        def counted(*args: Any, **settings: Any) -> Any:
            self._questions += 1
            return original(*args, **settings)

        return counted

    def _count(self) -> int:
        return int(re.findall(rb"syscr: (\d+)", os.pread(self._file, 1024, 0))[0]) + self._questions

"""Loaded by every Python process that finds this folder on its path: how effects are counted in Spark's Python workers."""

from __future__ import annotations

import os

if "EFFECTS_LEDGER" in os.environ:
    from protocol.crash.effects import Effects, install

    install(Effects.of_environment())

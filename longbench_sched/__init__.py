"""longbench-sched: which engine and which scheduler settings serve a long-context workload best, and how sure is that.

In a notebook: `import longbench_sched as lb`, then `lb.load(...)` and `lb.compare(a, b)`; see `notebook.py`.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "compare", "load"]  # the last two come by __getattr__


def __getattr__(name: str) -> Any:
    # Not imported here: `--version` would wait for numpy, and every floor would stand upon the top one.
    if name in ("compare", "load"):
        return importlib.import_module(f"longbench_sched.{name}")  # the packages themselves can be called
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Where a run was made: machine and package versions, for the record. No names of users, hosts or folders."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from longbench_sched import __version__

PACKAGES = ("aiohttp", "httpx", "numpy", "orjson", "pyarrow", "tokenizers", "uvloop")


def host_facts() -> dict[str, Any]:
    """The machine that measured."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "usable_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_mb": _memory_mb(),
    }


def versions() -> dict[str, str]:
    """Versions of the tool, of Python, and of the packages that had a part in the numbers."""
    found = {"longbench-sched": __version__, "python": sys.version.partition(" ")[0]}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _memory_mb() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1_000_000
    except (ValueError, OSError, AttributeError):
        return None

"""A package that can be called: `lb.load(...)` in a notebook is also the folder `load/`, and only one can hold the name."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        # By its name: a floor knows nothing of the one above.
        name = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module("longbench_sched.notebook"), name)(*arguments, **settings)


def let_be_called(package: str) -> None:
    """Have a package stand for the notebook's function of the same name."""
    sys.modules[package].__class__ = _CallablePackage

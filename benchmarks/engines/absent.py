"""Stands for packages that an engine imports and, for a text model on a CPU, never uses. Imported at the start of its Python.

`import torchvision.anything` then succeeds, and so does every name taken from it: it is a class that can be named, subclassed
and made an object of. A name of sgl_kernel is a function that says, when it is called, that it is not there; its inner modules
are not found, which SGLang is prepared for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Named(type):
    """Attributes of an absent class are their names: members of an enumeration, mostly."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Absent(metaclass=_Named):
    """Any class or function of a package that is not there."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> Absent:
        return Absent()


def _absent_class(_: str) -> type[Absent]:
    return Absent


def _absent_kernel(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} is not there: no build for CPUs was installed")

    return refuse


STAND_INS: dict[str, Callable[[str], Any]] = {"torchvision": _absent_class, "sgl_kernel": _absent_kernel}
WITH_MODULES = frozenset({"torchvision"})


class Finder:
    """Finds the packages of STAND_INS, and what is in those WITH_MODULES; asked last, so that a real package goes first."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """As importlib asks."""
        package, _, inner = name.partition(".")
        if package not in STAND_INS or (inner and package not in WITH_MODULES):
            return None
        return ModuleSpec(name, Finder, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        """An empty module that has any name that is not private."""
        stand_in = STAND_INS[spec.name.partition(".")[0]]

        def get(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return stand_in(name)

        module = ModuleType(spec.name)
        module.__version__ = "0.0.0"  # type: ignore[attr-defined]
        module.__getattr__ = get  # type: ignore[method-assign]
        return module

    @staticmethod
    def exec_module(_module: ModuleType) -> None:
        """Nothing to run."""


def stand_in() -> None:
    """Let absent packages be imported from now on."""
    sys.meta_path.append(Finder)


if __name__ == "engines_absent":  # its name in an engine's environment
    stand_in()

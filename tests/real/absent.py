"""Empty packages in place of those that a framework imports, that are not installed and that no configuration needs."""

from __future__ import annotations

import abc
import importlib.machinery
import sys
import types
from importlib.util import find_spec
from typing import Any


class Anything(abc.ABCMeta):
    """Classes that have whatever class is asked of them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)

    def __call__(cls, *given: Any, **named: Any) -> Any:
        """As a decorator, with arguments or without, it changes nothing."""
        return given[0] if len(given) == 1 and callable(given[0]) else object.__new__(cls)  # type: ignore[arg-type]


def anything(name: str) -> Any:
    """A class of that name."""
    return Anything(name, (), {"__call__": lambda _, given: given})


class Empty(types.ModuleType):
    """A module that has whatever class is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)


def asking() -> str:
    """The module whose import is being resolved."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and not name.startswith("importlib"):
            return name
        frame = frame.f_back
    return ""


class Absent:
    """Finds packages that are not installed, as empty ones, where a module of `package` imports them."""

    def __init__(self, package: str, names: tuple[str, ...]) -> None:
        self.package, self.names = package, names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The empty module's specification."""
        if asking().startswith(self.package) and any(
            name == known or name.startswith(f"{known}.") for known in self.names
        ):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        """An empty one."""
        module = Empty(spec.name)
        module.__file__ = spec.name
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def lend(package: str, names: tuple[str, ...], hidden: tuple[str, ...] = ()) -> None:
    """From here on these packages, where they are not installed, are empty ones to the modules of `package`.

    Other packages, which go without where they can, find nothing. `hidden`: packages that are there, and are empty all
    the same: kernels that are compiled as they are imported.
    """
    sys.meta_path.insert(0, Absent(package, hidden))
    absent = tuple(name for name in names if not _installed(name))
    sys.meta_path.append(Absent(package, absent))


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False

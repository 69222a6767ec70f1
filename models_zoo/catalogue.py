"""Finds architectures by name. Loading one by its canonical name reads one file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from models_zoo.schema import Architecture

_DATA = Path(__file__).parent / "data"
_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9.\-]{0,99}")


class UnknownModelError(KeyError):
    """No model of that name or alias; `nearest` holds the closest names, best first."""

    def __init__(self, name: str, nearest: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.nearest = nearest

    def __str__(self) -> str:
        hint = f" Nearest: {', '.join(self.nearest)}." if self.nearest else ""
        return f"no model named {self.name!r} in the catalogue.{hint}"


def load_architecture(name: str) -> Architecture:
    """The architecture of that canonical name or alias; case does not matter and "_" reads as "-".

    Raises:
        UnknownModelError: with the nearest names.
    """
    wanted = _normalise(name)
    if _SAFE_NAME.fullmatch(wanted):
        path = _DATA / f"{wanted}.yaml"
        if path.is_file():
            return _load_file(path)
        for path in _files():
            if wanted in _normalise(path.read_text(encoding="utf-8")):
                architecture = _load_file(path)
                if wanted in map(_normalise, architecture.aliases):
                    return architecture
    raise UnknownModelError(name, _nearest(wanted))


def list_architectures() -> list[Architecture]:
    """Every architecture of the catalogue, sorted by name. Reads every file."""
    return [_load_file(path) for path in _files()]


def architecture_names() -> tuple[str, ...]:
    """The canonical names, sorted. Reads no file."""
    return tuple(path.stem for path in _files())


def _files() -> list[Path]:
    return sorted(_DATA.glob("*.yaml"), key=lambda path: path.stem)


def _normalise(text: str) -> str:
    return text.strip().lower().replace("_", "-")


@cache
def _load_file(path: Path) -> Architecture:
    from ruamel.yaml import YAML

    raw: dict[str, Any] = YAML(typ="safe").load(path)
    return Architecture.model_validate(raw)


def _nearest(wanted: str) -> tuple[str, ...]:
    import difflib

    owner = {_normalise(alias): arch.name for arch in list_architectures() for alias in (arch.name, *arch.aliases)}
    close = difflib.get_close_matches(wanted, owner, n=5, cutoff=0.5)
    return tuple(dict.fromkeys(owner[match] for match in close))[:3]

"""Finds architectures by name: the catalogue's own, an alias, or a repository on Hugging Face.

Loading one by its canonical name reads one file.
"""

from __future__ import annotations

import re
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from models_zoo.schema import Architecture

_DATA = Path(__file__).parent / "data"
_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9.\-]{0,99}")


class UnknownModelError(KeyError):
    """No model of that name, alias or repository."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    @cached_property
    def nearest(self) -> tuple[str, ...]:
        """The closest names, best first. Reads every file when somebody asks."""
        return _nearest(_normalise(self.name))

    def __str__(self) -> str:
        hint = f" Nearest: {', '.join(self.nearest)}." if self.nearest else ""
        return f"no model named {self.name!r} in the catalogue.{hint}"


def load_architecture(name: str) -> Architecture:
    """The architecture of that canonical name, alias or repository on Hugging Face, whose owner may be left out.

    Case does not matter and "_" reads as "-".

    Raises:
        UnknownModelError: with the nearest names.
    """
    wanted = _normalise(name)
    if _SAFE_NAME.fullmatch(wanted) and (path := _DATA / f"{wanted}.yaml").is_file():
        return _load_file(path)
    if wanted:
        for path in _files():
            if wanted in _normalise(path.read_text(encoding="utf-8")):
                architecture = _load_file(path)
                if wanted in map(_normalise, other_names(architecture)):
                    return architecture
    raise UnknownModelError(name)


def other_names(architecture: Architecture) -> tuple[str, ...]:
    """What else a model answers to: its aliases, and its repositories with and without their owners."""
    plain = (repository.partition("/")[2] for repository in architecture.hugging_face)
    return tuple(dict.fromkeys((*architecture.aliases, *architecture.hugging_face, *plain)))


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
    """Of the three models whose names are closest: the repository where its name was the close one, else the name."""
    import difflib

    spelt: dict[str, tuple[str, str]] = {}
    for arch in list_architectures():
        spelt |= {_normalise(other): (arch.name, other if "/" in other else arch.name) for other in other_names(arch)}
        spelt[_normalise(arch.name)] = (arch.name, arch.name)
    close = difflib.get_close_matches(wanted, spelt, n=8, cutoff=0.5)
    best: dict[str, str] = {}
    for match in close:
        best.setdefault(*spelt[match])
    return tuple(best.values())[:3]

"""What goes wrong when a chip is looked up or asked for a figure that nobody published."""

from __future__ import annotations


class UnknownChipError(KeyError):
    """No chip of that name or alias; `nearest` holds the closest names, best first."""

    def __init__(self, name: str, nearest: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.nearest = nearest

    def __str__(self) -> str:
        hint = f" Nearest: {', '.join(self.nearest)}." if self.nearest else ""
        return f"no chip named {self.name!r} in the catalogue.{hint}"


class UnknownFigureError(ValueError):
    """The catalogue does not know a figure of a chip (see `unusable_reasons` to ask beforehand)."""

    def __init__(self, chip: str, figure: str) -> None:
        super().__init__(f"chip {chip!r}: {figure} is not known")
        self.chip = chip
        self.figure = figure

"""What goes wrong when a model is looked up."""

from __future__ import annotations


class UnknownModelError(KeyError):
    """No model of that name or alias; `nearest` holds the closest names, best first."""

    def __init__(self, name: str, nearest: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.nearest = nearest

    def __str__(self) -> str:
        hint = f" Nearest: {', '.join(self.nearest)}." if self.nearest else ""
        return f"no model named {self.name!r} in the catalogue.{hint}"


class UnsupportedConfigError(ValueError):
    """A Hugging Face configuration that no architecture here can express.

    `where` and `value` are the key in question ("": several), `reasons` what is wrong, `allowed` what would be right,
    `nearest` the families most like the one written.
    """

    def __init__(
        self, where: str, value: object, reasons: list[str], allowed: str | None = None, nearest: tuple[str, ...] = ()
    ) -> None:
        super().__init__("; ".join(reasons))
        self.where, self.value, self.reasons = where, value, tuple(reasons)
        self.allowed, self.nearest = allowed, nearest

"""Reads the keys of a Hugging Face configuration, and collects what is missing or cannot be said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
Fields = dict[str, Any]


class Reader:
    """The keys of `config`; `reasons` say why it cannot be read."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.reasons: list[str] = []

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of several keys that is there and not null."""
        return next((self.config[name] for name in names if self.config.get(name) is not None), default)

    def size(self, *names: str) -> int:
        """A whole number that must be there."""
        value = self.get(*names)
        if isinstance(value, bool) or not isinstance(value, int):
            self.reasons.append(f"{' or '.join(names)} is missing, or no whole number")
            return 1
        return value

    def refuse(self, condition: object, reason: str) -> None:
        """Collect a reason where the condition holds."""
        if condition:
            self.reasons.append(reason)

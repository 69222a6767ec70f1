"""A mapping of what was worked out last."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V]):
    """Holds `most` entries: each further one takes the place of the oldest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        """Add an entry, or replace that of the key."""
        while key not in self and len(self) >= self._most:
            del self[next(iter(self))]
        super().__setitem__(key, value)

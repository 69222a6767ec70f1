"""What all sections of a spec have in common: short on purpose, for sections import it that import each other."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt

MOST = 1_048_576
"""The largest count that a spec may hold: 2**20."""
Count = Annotated[StrictInt, Field(ge=1, le=MOST)]
Number = Annotated[float, Field(strict=True)]
Name = Annotated[str, Field(min_length=1)]


class Part(BaseModel):
    """A section of the spec: frozen, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

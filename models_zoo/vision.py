"""The encoder of images beside a decoder: patches of an image through layers of its own, joined and projected."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, model_validator

EncoderFamily = Literal["qwen2_5_vl", "qwen3_vl"]
"""Encoders that a framework has modules of its own for, by the model_type of the first model that had them."""


class Vision(BaseModel):
    """A vision transformer and its projector, by the names of `Architecture`; attention sees all patches of an image.

    A patch is `patch` pixels square, of `frames` images at a time (1; 2 where videos are read). `positions`: rows of
    learned ones, 0: rotary; `class_token`: one more token in front; `layer_scale`: a weight for each channel behind
    each block; `final_norm`: after the last layer. With a `window`, of so many patches, only every `full_every`-th
    layer sees all. `merge` x `merge` neighbouring patches are joined to a token of the decoder by a projector of two
    linear layers with biases, `projector` wide between them (null: as the decoder); `projector_norm`: of each patch
    before they are joined, of what is joined, or none. `deepstack`: so many more projectors, each with a norm of what
    is joined, whose tokens are added in the decoder's first layers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: PositiveInt
    hidden: PositiveInt
    ffn: PositiveInt
    heads: PositiveInt
    gated_mlp: bool = False
    activation: str = "gelu"
    norm: Literal["rmsnorm", "layernorm"] = "layernorm"
    bias_qkv: bool = True
    bias_attention_out: bool = True
    bias_mlp: bool = True
    patch: PositiveInt = 14
    frames: PositiveInt = 1
    patch_bias: bool = True
    positions: NonNegativeInt = 0
    class_token: bool = False
    layer_scale: bool = False
    final_norm: bool = False
    window: PositiveInt | None = None
    full_every: PositiveInt | None = None
    merge: PositiveInt = 1
    projector: PositiveInt | None = None
    projector_norm: Literal["patch", "joined", "none"] = "none"
    deepstack: NonNegativeInt = 0

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        wrong = []
        if self.hidden % self.heads:
            wrong.append(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        if self.full_every is not None and self.window is None:
            wrong.append(f"full_every is {self.full_every} but window is not given: how far the other layers see")
        if self.full_every is not None and self.full_every > self.layers:
            wrong.append(f"full_every {self.full_every} is more than layers {self.layers}")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    @property
    def joined(self) -> int:
        """Width of a token before the projector: of all patches that are joined."""
        return self.hidden * self.merge**2

    @property
    def patch_inputs(self) -> int:
        """Colours of the pixels of a patch."""
        return 3 * self.frames * self.patch**2

    @property
    def family(self) -> EncoderFamily | None:
        """The family whose encoders are built as this one is, of whatever sizes; None: none that has a name here."""
        of_qwen: dict[str, Any] = {"frames": 2, "projector": self.joined, "projector_norm": "patch"}
        windows: dict[str, Any] = {"window": self.window, "full_every": self.full_every, "patch_bias": False}
        gated: dict[str, Any] = {"gated_mlp": True, "activation": "swiglu", "norm": "rmsnorm"}
        built: dict[EncoderFamily, dict[str, Any]] = {
            "qwen2_5_vl": {**of_qwen, **windows, **gated},
            "qwen3_vl": {**of_qwen, "positions": self.positions, "deepstack": self.deepstack},
        }
        sizes = {name: getattr(self, name) for name in ("layers", "hidden", "ffn", "heads", "patch", "merge")}
        for name, parts in built.items():
            if self == Vision(**sizes, **parts) and (name == "qwen2_5_vl" or self.positions):
                return name
        return None

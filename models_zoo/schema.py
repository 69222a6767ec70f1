"""What the catalogue knows of a model: its shape, where the shape comes from, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_core import ValidationError

from models_zoo.consistency import Written, contradictions, derived, too_large
from models_zoo.vision import Vision

Confidence = Literal["verified", "secondary", "assumed"]
Mixer = Literal["attention", "linear", "mamba", "none"]
"""What mixes the tokens of a layer: attention, a linear recurrence, a state-space one, or nothing."""

SpecialLayer = Literal[
    "single_blocks",
    "state_space",
    "delta_rule",
    "kimi_delta",
    "sparse_attention",
    "compressed_attention",
    "latent_experts",
    "zero_experts",
    "shortcut_experts",
    "own_widths",
    "parallel_blocks",
    "repeated_modules",
]
SPECIAL_LAYERS: Mapping[SpecialLayer, str] = {
    "single_blocks": "layers that are one block each (layer_pattern)",
    "state_space": "state-space layers (Mamba-2)",
    "delta_rule": "linear attention by a gated delta rule",
    "kimi_delta": "linear attention by Kimi's delta rule",
    "sparse_attention": "sparse attention with an indexer",
    "compressed_attention": "compressed sparse attention",
    "latent_experts": "experts that work in a width of their own (latent)",
    "zero_experts": "experts that do nothing",
    "shortcut_experts": "experts beside two dense blocks of a layer (shortcut)",
    "own_widths": "heads of another width in layers that attend fully",
    "parallel_blocks": "attention and feed-forward side by side (one norm a layer)",
    "repeated_modules": "modules of multi-token prediction that have the weights of one",
}
"""What a model may have beside attention and feed-forward blocks one after the other, in words."""

DESCRIPTIVE_FIELDS = {
    *("name", "aliases", "family", "max_positions", "confidence", "proposal", "inferred_fields", "sources", "notes"),
    *("hugging_face", "published_params_billion", "published_params_basis", "published_params_gap"),
    *("norm_epsilon", "rotary_base", "router_scaling"),
}
"""Fields of an architecture that change neither time nor memory."""


def _value_error(where: str, text: str, data: object) -> Any:
    context = {"error": ValueError(text)}
    return {"type": "value_error", "loc": tuple(where.split(".")), "input": data, "ctx": context}


class _ArchitectureRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Indexer(_ArchitectureRecord):
    """The small scorer of sparse attention that picks `topk` keys for each query.

    Layers up to the `first`, and every `every`-th from it on, score; the others take what the last one picked.
    """

    heads: PositiveInt
    dim: PositiveInt
    topk: PositiveInt
    every: PositiveInt = 1
    first: PositiveInt = 1


class Attention(_ArchitectureRecord):
    """How a layer attends. Widths are in elements; `None` means "not a part of this kind".

    `full_every` counts layers: with a `sliding_window`, layers n, 2n, 3n, ... attend to everything and the
    others to the window only; without `full_every` every layer has the window. `global_head_dim` and
    `global_kv_heads` replace `head_dim` and `kv_heads` in those full layers. `compression`, of kind csa: for each layer
    the tokens to a key beyond the window, 0 for none there; an indexer selects where they are fewest. `no_rope`: no
    layer has a rotary embedding; `no_rope_every`: layers n, 2n, 3n, ... have none.
    """

    kind: Literal["mha", "gqa", "mqa", "mla", "csa"] = "mha"
    qk_norm: Literal["head", "layer"] | None = None
    output_gate: bool = False
    sinks: bool = False
    sliding_window: PositiveInt | None = None
    full_every: PositiveInt | None = None
    global_head_dim: PositiveInt | None = None
    global_kv_heads: PositiveInt | None = None
    global_shared_kv: bool = False
    q_lora: PositiveInt | None = None
    kv_lora: PositiveInt | None = None
    qk_nope: PositiveInt | None = None
    qk_rope: PositiveInt | None = None
    v_head: PositiveInt | None = None
    o_lora: PositiveInt | None = None
    o_groups: PositiveInt | None = None
    compression: tuple[NonNegativeInt, ...] | None = None
    no_rope: bool = False
    no_rope_every: PositiveInt | None = None
    indexer: Indexer | None = None

    @property
    def owns_widths(self) -> bool:
        """Layers that attend fully have heads, or keys and values, of their own shape."""
        return bool(self.global_head_dim or self.global_kv_heads or self.global_shared_kv)


class Moe(_ArchitectureRecord):
    """Mixture of experts. Layer i has experts when i >= first_dense and (i - offset) % freq == 0.

    `latent` is the width the routed experts work in when it is not the model's own; `shared_ffn` is the
    width of one shared expert (default: `expert_ffn`). Of `groups` of neighbouring experts, equal in number, a token's
    are all in `top_groups`: every one where the router has no groups. Beside them the router chooses among
    `zero_experts`, which give a token back as it is. `router_bias`: with it the sigmoids of scores weigh the experts,
    and the bias only chooses them (DeepSeek-V3); or with `router_softmax` it is part of the scores, and a softmax over
    those of the chosen weighs (gpt-oss). `shortcut`: each layer is attention and a dense block, twice; its
    experts take what goes into the first dense block, and are added at the layer's end (LongCat, arXiv:2509.01322).
    """

    experts: PositiveInt
    top_k: PositiveInt
    expert_ffn: PositiveInt
    groups: PositiveInt = 1
    top_groups: PositiveInt = 1
    shared_experts: NonNegativeInt = 0
    shared_ffn: PositiveInt | None = None
    shared_gate: bool = False
    latent: PositiveInt | None = None
    first_dense: NonNegativeInt = 0
    freq: PositiveInt = 1
    offset: NonNegativeInt = 0
    router_bias: bool = False
    router_softmax: bool = False
    hash_routed_layers: NonNegativeInt = 0
    zero_experts: NonNegativeInt = 0
    shortcut: bool = False

    @property
    def choices(self) -> int:
        """What the router scores for a token: experts, and those that do nothing."""
        return self.experts + self.zero_experts

    @property
    def computed(self) -> float:
        """Experts that compute for a token, of its `top_k`: the mean, where all are chosen equally often."""
        return self.top_k * self.experts / self.choices

    @property
    def shared_width(self) -> int:
        """Width of all shared experts together."""
        return self.shared_experts * (self.shared_ffn or self.expert_ffn)


class LinearAttention(_ArchitectureRecord):
    """Layers whose mixer is a linear recurrence over the sequence.

    Which layers: all but every `Architecture.full_attention_interval`-th, or simply `layers` of them. The
    Kimi kind has one width (`heads` x `dim`) for keys and values.
    """

    kind: Literal["gated_deltanet", "kimi_delta_attention"]
    conv: PositiveInt
    key_heads: PositiveInt | None = None
    key_dim: PositiveInt | None = None
    value_heads: PositiveInt | None = None
    value_dim: PositiveInt | None = None
    layers: PositiveInt | None = None
    heads: PositiveInt | None = None
    dim: PositiveInt | None = None
    full_rank_gate: bool = False


class Mamba(_ArchitectureRecord):
    """A state-space mixer (Mamba-2): inner width = heads x head_dim."""

    kind: Literal["mamba2"] = "mamba2"
    heads: PositiveInt
    head_dim: PositiveInt
    groups: PositiveInt
    state: PositiveInt
    conv: PositiveInt


class Architecture(_ArchitectureRecord):
    """One decoder-only transformer, as published or as a user describes it.

    A plain LLaMA-like model needs `name`, `layers`, `hidden`, `ffn`, `heads` and `vocab`; `kv_heads`
    defaults to `heads` and `head_dim` to `hidden / heads` (an error when that does not divide). Widths
    count elements. `layer_pattern`, where given, has one letter a layer: M state space, * attention, E
    experts, - a dense feed-forward block, each a layer of its own with one norm; `mtp_pattern` has those of one module
    of multi-token prediction. `mtp_repeated`: all `mtp_layers` modules have the weights of one. `residual_streams`
    above 1 are hyper-connections: so many hidden states, mixed before and after each block. `vision`: an encoder of
    images beside the decoder, which is there where images are trained on. `norm_epsilon` is what norms add to the mean
    square, `rotary_base` the base of the rotary embedding, `router_scaling` what the routed experts' weights are
    multiplied by, `gate_offset` what is added to a gated block's other half before they are multiplied,
    `activation_clamp` what both halves are cut off at: no plan depends on them, and None says that they are not known,
    or that there is none. `published_params_gap` says why the
    computed count may be off the published one by over 1 %. `hugging_face` lists repositories there whose weights have
    this shape, base models first, by their own names.

    Raises:
        pydantic.ValidationError: with every problem found, each naming its field.
    """

    name: str = Field(min_length=1)
    aliases: tuple[str, ...] = ()
    hugging_face: tuple[str, ...] = ()
    family: str = ""
    layers: PositiveInt
    hidden: PositiveInt
    ffn: NonNegativeInt
    heads: PositiveInt
    kv_heads: PositiveInt = Field(default=0)
    head_dim: PositiveInt = Field(default=0)
    vocab: PositiveInt
    max_positions: PositiveInt | None = None
    gated_mlp: bool = True
    activation: str = "swiglu"
    gate_offset: NonNegativeFloat = 0.0
    activation_clamp: PositiveFloat | None = None
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_bias: bool = False
    norm_epsilon: PositiveFloat | None = None
    norms_per_layer: PositiveInt = 2
    position: Literal["rope", "learned", "alibi", "none"] = "rope"
    position_offset: NonNegativeInt = 0
    rotary_base: PositiveInt | None = None
    embedding_norm: bool = False
    tied_embeddings: bool = False
    bias_qkv: bool = False
    bias_attention_out: bool = False
    bias_mlp: bool = False
    residual_streams: PositiveInt = 1
    attention: Attention = Attention()
    moe: Moe | None = None
    router_scaling: PositiveFloat | None = None
    linear_attention: LinearAttention | None = None
    full_attention_interval: PositiveInt | None = None
    mamba: Mamba | None = None
    layer_pattern: str | None = Field(default=None, pattern=r"^[M*E-]+$")
    mtp_layers: NonNegativeInt = 0
    mtp_pattern: str | None = Field(default=None, pattern=r"^[M*E-]+$")
    mtp_repeated: bool = False
    vision: Vision | None = None
    published_params_billion: PositiveFloat | None = None
    published_params_basis: str | None = None
    published_params_gap: str | None = None
    sources: str = ""
    confidence: Confidence = "assumed"
    proposal: bool = False
    inferred_fields: str | None = None
    notes: str | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _consistent(cls, data: Any, check: Callable[[Any], Architecture]) -> Architecture:
        """Check each field by itself, and the sound ones against each other, to report all that is wrong at once."""
        if not isinstance(data, dict):
            return check(data)
        details, architecture = [], None
        if beyond := list(too_large(data)):  # before anything is counted layer by layer
            raise ValidationError.from_exception_data(cls.__name__, [_value_error(*each, data) for each in beyond])
        try:
            architecture = check(derived(data))
        except ValidationError as error:
            details = [(".".join(map(str, detail["loc"][:2])), detail) for detail in error.errors(include_url=False)]
        refused = {where for where, detail in details if detail["type"] != "missing"}
        contradicting = list(contradictions(Written.of(data, refused)))
        contradicted = dict(contradicting)
        errors: list[Any] = [detail for where, detail in details if where in refused or where not in contradicted]
        for where, text in contradicting:
            errors.append(_value_error(where, text, data))
        if errors or architecture is None:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return architecture

    @property
    def mtp_weights(self) -> int:
        """Modules of multi-token prediction that have weights of their own."""
        return min(1, self.mtp_layers) if self.mtp_repeated else self.mtp_layers

    @property
    def embeds_at_both_ends(self) -> bool:
        """The last pipeline stage needs the embedding too: as its head, or for multi-token prediction."""
        return self.tied_embeddings or self.mtp_layers > 0

    def has_experts(self, layer_index: int) -> bool:
        """Whether this layer (counted from 0) is a mixture of experts."""
        if self.moe is None:
            return False
        if self.layer_pattern is not None:
            return self.layer_pattern[layer_index] == "E"
        moe = self.moe
        return layer_index >= moe.first_dense and (layer_index - moe.offset) % moe.freq == 0

    def has_feed_forward(self, layer_index: int) -> bool:
        """Whether this layer (counted from 0) has a feed-forward block, dense or of experts."""
        return self.layer_pattern is None or self.layer_pattern[layer_index] in "E-"

    @property
    def expert_width(self) -> int:
        """Width of what routed experts take and give: the model's own, or the latent one."""
        return self.hidden if self.moe is None else self.moe.latent or self.hidden

    def compression_of(self, layer_index: int) -> int:
        """Tokens to a key beyond the window in this layer (counted from 0); 1: keys are not compressed, 0: none."""
        return self.attention.compression[layer_index] if self.attention.compression else 1

    def has_indexer(self, layer_index: int) -> bool:
        """Whether an indexer selects the keys of this layer (counted from 0)."""
        if self.attention.indexer is None or not self.attention.compression:
            return self.attention.indexer is not None
        return self.compression_of(layer_index) == min(filter(None, self.attention.compression), default=0)

    def scores_keys(self, layer_index: int) -> bool:
        """Whether this layer (counted from 0) has an indexer of its own, and not another's choice."""
        indexer = self.attention.indexer
        if indexer is None or not self.has_indexer(layer_index):
            return False
        return max(0, layer_index + 1 - indexer.first) % indexer.every == 0

    def mixer(self, layer_index: int) -> Mixer:
        """What mixes tokens in this layer (counted from 0); "none" for a feed-forward layer of a pattern."""
        if self.layer_pattern is not None:
            kinds: dict[str, Mixer] = {"*": "attention", "M": "mamba"}
            return kinds.get(self.layer_pattern[layer_index], "none")
        if self.linear_attention is None:
            return "attention"
        if self.full_attention_interval is not None:
            return "attention" if (layer_index + 1) % self.full_attention_interval == 0 else "linear"
        # Only the number of linear layers is known; they are taken to come first, which changes no total.
        return "linear" if layer_index < (self.linear_attention.layers or 0) else "attention"

    def attends_fully(self, layer_index: int) -> bool:
        """Whether an attention layer sees the whole sequence (always, without a sliding window)."""
        if self.attention.sliding_window is None:
            return True
        every = self.attention.full_every
        return every is not None and (layer_index + 1) % every == 0


def special_layers(arch: Architecture) -> tuple[SpecialLayer, ...]:
    """What the model has of SPECIAL_LAYERS, which not every framework trains; empty for most models."""
    attention, linear, moe = arch.attention, arch.linear_attention, arch.moe
    present: dict[SpecialLayer, bool] = {
        "single_blocks": arch.layer_pattern is not None,
        "state_space": arch.mamba is not None,
        "delta_rule": linear is not None and linear.kind == "gated_deltanet",
        "kimi_delta": linear is not None and linear.kind == "kimi_delta_attention",
        "sparse_attention": attention.indexer is not None and attention.kind != "csa",
        "compressed_attention": attention.kind == "csa",
        "latent_experts": moe is not None and moe.latent is not None,
        "zero_experts": moe is not None and moe.zero_experts > 0,
        "shortcut_experts": moe is not None and moe.shortcut,
        "own_widths": attention.owns_widths,
        "parallel_blocks": arch.norms_per_layer == 1 and arch.layer_pattern is None,
        "repeated_modules": arch.mtp_layers > arch.mtp_weights,
    }
    return tuple(name for name, has_it in present.items() if has_it)

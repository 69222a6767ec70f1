"""What the catalogue knows of a model: its shape, where the shape comes from, and how sure that is."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

Confidence = Literal["verified", "secondary", "assumed"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Indexer(_Frozen):
    """The small scorer of sparse attention that picks `topk` keys for each query."""

    heads: PositiveInt
    dim: PositiveInt
    topk: PositiveInt


class Attention(_Frozen):
    """How a layer attends. Widths are in elements; `None` means "not a part of this kind".

    `full_every` counts layers: with a `sliding_window`, layers n, 2n, 3n, ... attend to everything and the
    others to the window only; without `full_every` every layer has the window. `global_head_dim` and
    `global_kv_heads` replace `head_dim` and `kv_heads` in those full layers.
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
    no_rope: bool = False
    indexer: Indexer | None = None

    @model_validator(mode="after")
    def _latent_widths_given(self) -> Attention:
        needed = {
            "mla": ("kv_lora", "qk_nope", "qk_rope", "v_head"),
            "csa": ("q_lora", "o_lora", "o_groups"),
        }.get(self.kind, ())
        missing = [field for field in needed if getattr(self, field) is None]
        if missing:
            raise ValueError(f"attention kind {self.kind} needs {', '.join(missing)}")
        return self


class Moe(_Frozen):
    """Mixture of experts. Layer i has experts when i >= first_dense and (i - offset) % freq == 0.

    `latent` is the width the routed experts work in when it is not the model's own; `shared_ffn` is the
    width of one shared expert (default: `expert_ffn`).
    """

    experts: PositiveInt
    top_k: PositiveInt
    expert_ffn: PositiveInt
    shared_experts: NonNegativeInt = 0
    shared_ffn: PositiveInt | None = None
    shared_gate: bool = False
    latent: PositiveInt | None = None
    first_dense: NonNegativeInt = 0
    freq: PositiveInt = 1
    offset: NonNegativeInt = 0
    router_bias: bool = False
    hash_routed_layers: NonNegativeInt = 0

    @model_validator(mode="after")
    def _enough_experts(self) -> Moe:
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.experts} experts")
        return self


class LinearAttention(_Frozen):
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


class Mamba(_Frozen):
    """A state-space mixer (Mamba-2): inner width = heads x head_dim."""

    kind: Literal["mamba2"] = "mamba2"
    heads: PositiveInt
    head_dim: PositiveInt
    groups: PositiveInt
    state: PositiveInt
    conv: PositiveInt


class Architecture(_Frozen):
    """One decoder-only transformer, as published or as a user describes it.

    A plain LLaMA-like model needs `name`, `layers`, `hidden`, `ffn`, `heads` and `vocab`; `kv_heads`
    defaults to `heads` and `head_dim` to `hidden / heads` (an error when that does not divide). Widths
    count elements. `layer_pattern`, where given, has one letter a layer: M state space, * attention, E
    experts, each a layer of its own with one norm. `published_params_gap` says why the computed count may
    be off the published one by over 1 %.

    Raises:
        pydantic.ValidationError: with every problem found, each naming its field.
    """

    name: str = Field(min_length=1)
    aliases: tuple[str, ...] = ()
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
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_bias: bool = False
    norms_per_layer: PositiveInt = 2
    position: Literal["rope", "learned", "alibi", "none"] = "rope"
    position_offset: NonNegativeInt = 0
    embedding_norm: bool = False
    tied_embeddings: bool = False
    bias_qkv: bool = False
    bias_attention_out: bool = False
    bias_mlp: bool = False
    attention: Attention = Attention()
    moe: Moe | None = None
    linear_attention: LinearAttention | None = None
    full_attention_interval: PositiveInt | None = None
    mamba: Mamba | None = None
    layer_pattern: str | None = Field(default=None, pattern=r"^[M*E]+$")
    mtp_layers: NonNegativeInt = 0
    published_params_billion: PositiveFloat | None = None
    published_params_basis: str | None = None
    published_params_gap: str | None = None
    sources: str = ""
    confidence: Confidence = "assumed"
    proposal: bool = False
    inferred_fields: str | None = None
    notes: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:
        """Fill what follows from other fields; leave wrong types for the field checks to report."""
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        heads, hidden = filled.get("heads"), filled.get("hidden")
        if filled.get("kv_heads") is None:
            filled.pop("kv_heads", None)
            if isinstance(heads, int) and heads > 0:
                filled["kv_heads"] = heads
        if filled.get("head_dim") is None:
            filled.pop("head_dim", None)
            if isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and hidden % heads == 0:
                filled["head_dim"] = hidden // heads
        if "norm_bias" not in filled:
            filled["norm_bias"] = filled.get("norm") == "layernorm"
        attention = filled.get("attention")
        if attention is None:
            attention = {}
        if isinstance(attention, dict) and "kind" not in attention:
            filled["attention"] = {"kind": _kind_of(heads, filled.get("kv_heads")), **attention}
        return filled

    @model_validator(mode="after")
    def _consistent(self) -> Architecture:
        problems = _shape_problems(self) + _layer_kind_problems(self)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def has_experts(self, layer_index: int) -> bool:
        """Whether this layer (counted from 0) is a mixture of experts."""
        if self.moe is None:
            return False
        if self.layer_pattern is not None:
            return self.layer_pattern[layer_index] == "E"
        moe = self.moe
        return layer_index >= moe.first_dense and (layer_index - moe.offset) % moe.freq == 0

    def mixer(self, layer_index: int) -> Literal["attention", "linear", "mamba", "none"]:
        """What mixes tokens in this layer (counted from 0); "none" for an experts-only layer of a pattern."""
        if self.layer_pattern is not None:
            kinds: dict[str, Literal["attention", "mamba", "none"]]
            kinds = {"*": "attention", "M": "mamba", "E": "none"}
            return kinds[self.layer_pattern[layer_index]]
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


def _kind_of(heads: object, kv_heads: object) -> str:
    if kv_heads == heads:
        return "mha"
    return "mqa" if kv_heads == 1 else "gqa"


def _shape_problems(arch: Architecture) -> list[str]:
    problems = []
    if arch.head_dim == 0:
        problems.append(f"hidden {arch.hidden} is not a multiple of heads {arch.heads}: give head_dim")
    if arch.kv_heads and arch.heads % arch.kv_heads:
        problems.append(f"heads {arch.heads} is not a multiple of kv_heads {arch.kv_heads}")
    if arch.position == "learned" and arch.max_positions is None:
        problems.append("learned positions need max_positions (the rows of the position table)")
    has_dense_mlp = arch.layer_pattern is None and not all(map(arch.has_experts, range(arch.layers)))
    if arch.ffn == 0 and has_dense_mlp:
        problems.append("ffn is 0 but some layers have a dense MLP")
    return problems


def _layer_kind_problems(arch: Architecture) -> list[str]:
    problems = []
    pattern = arch.layer_pattern
    if pattern is not None and len(pattern) != arch.layers:
        problems.append(f"layer_pattern has {len(pattern)} letters for {arch.layers} layers")
    if pattern is not None and "M" in pattern and arch.mamba is None:
        problems.append("layer_pattern has M layers but mamba is not given")
    if pattern is not None and "E" in pattern and arch.moe is None:
        problems.append("layer_pattern has E layers but moe is not given")
    linear = arch.linear_attention
    if linear is not None and arch.full_attention_interval is None and linear.layers is None:
        problems.append("linear_attention needs full_attention_interval or its own layers")
    if linear is not None and linear.layers is not None and linear.layers > arch.layers:
        problems.append(f"linear_attention.layers {linear.layers} is more than layers {arch.layers}")
    return problems

"""What the catalogue knows of a model: its shape, where the shape comes from, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from pydantic_core import SchemaValidator, ValidationError, core_schema

from models_zoo.vision import Vision

Confidence = Literal["verified", "secondary", "assumed"]
Mixer = Literal["attention", "linear", "mamba", "none"]
"""What mixes the tokens of a layer: attention, a linear recurrence, a state-space one, or nothing."""
_INTEGER = SchemaValidator(core_schema.int_schema())

SpecialLayer = Literal[
    "single_blocks",
    "state_space",
    "delta_rule",
    "kimi_delta",
    "sparse_attention",
    "compressed_attention",
    "latent_experts",
    "own_widths",
    "parallel_blocks",
]
SPECIAL_LAYERS: Mapping[SpecialLayer, str] = {
    "single_blocks": "layers that are one block each (layer_pattern)",
    "state_space": "state-space layers (Mamba-2)",
    "delta_rule": "linear attention by a gated delta rule",
    "kimi_delta": "linear attention by Kimi's delta rule",
    "sparse_attention": "sparse attention with an indexer",
    "compressed_attention": "compressed sparse attention",
    "latent_experts": "experts that work in a width of their own (latent)",
    "own_widths": "heads of another width in layers that attend fully",
    "parallel_blocks": "attention and feed-forward side by side (one norm a layer)",
}
"""What a model may have beside attention and feed-forward blocks one after the other, in words."""

DESCRIPTIVE_FIELDS = {
    *("name", "aliases", "family", "max_positions", "confidence", "proposal", "inferred_fields", "sources", "notes"),
    *("hugging_face", "published_params_billion", "published_params_basis", "published_params_gap"),
}
"""Fields of an architecture that change neither time nor memory."""


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
    the tokens to a key beyond the window, 0 for none there; an indexer selects where they are fewest.
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
    indexer: Indexer | None = None

    @property
    def owns_widths(self) -> bool:
        """Layers that attend fully have heads, or keys and values, of their own shape."""
        return bool(self.global_head_dim or self.global_kv_heads or self.global_shared_kv)


class Moe(_ArchitectureRecord):
    """Mixture of experts. Layer i has experts when i >= first_dense and (i - offset) % freq == 0.

    `latent` is the width the routed experts work in when it is not the model's own; `shared_ffn` is the
    width of one shared expert (default: `expert_ffn`). Of `groups` of neighbouring experts, equal in number, a token's
    are all in `top_groups`: every one where the router has no groups.
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
    hash_routed_layers: NonNegativeInt = 0

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
    experts, - a dense feed-forward block, each a layer of its own with one norm. `residual_streams` above 1 are
    hyper-connections: so many hidden states, mixed before and after each block. `vision`: an encoder of images beside
    the decoder, which is there where images are trained on. `published_params_gap` says why the
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
    residual_streams: PositiveInt = 1
    attention: Attention = Attention()
    moe: Moe | None = None
    linear_attention: LinearAttention | None = None
    full_attention_interval: PositiveInt | None = None
    mamba: Mamba | None = None
    layer_pattern: str | None = Field(default=None, pattern=r"^[M*E-]+$")
    mtp_layers: NonNegativeInt = 0
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
        try:
            architecture = check(_derived(data))
        except ValidationError as error:
            details = [(".".join(map(str, detail["loc"][:2])), detail) for detail in error.errors(include_url=False)]
        refused = {where for where, detail in details if detail["type"] != "missing"}
        contradictions = list(_contradictions(_Written.of(data, refused)))
        contradicted = dict(contradictions)
        errors: list[Any] = [detail for where, detail in details if where in refused or where not in contradicted]
        for where, text in contradictions:
            context = {"error": ValueError(text)}
            errors.append({"type": "value_error", "loc": tuple(where.split(".")), "input": data, "ctx": context})
        if errors or architecture is None:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return architecture

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
        "own_widths": attention.owns_widths,
        "parallel_blocks": arch.norms_per_layer == 1 and arch.layer_pattern is None,
    }
    return tuple(name for name, has_it in present.items() if has_it)


def unsupported_reasons(arch: Architecture) -> tuple[str, ...]:
    """What the cost model cannot express of this model; empty when it can express all of it.

    Extra norms (in a layer, of queries and keys) are fine: they only add parameters and memory traffic.
    """
    alone = arch.mtp_layers > 0 and arch.layer_pattern is not None
    return ("multi-token prediction of several layers that are one block each",) if alone else ()


def _derived(data: dict[str, Any]) -> dict[str, Any]:
    """Fill what follows from other fields; leave wrong types for the field checks to report."""
    filled = {name: value for name, value in data.items() if value is not None or name not in ("kv_heads", "head_dim")}
    heads, hidden = _whole(filled.get("heads")) or 0, _whole(filled.get("hidden")) or 0
    if heads > 0:
        filled.setdefault("kv_heads", heads)
    if heads > 0 and hidden > 0 and hidden % heads == 0:
        filled.setdefault("head_dim", hidden // heads)
    filled.setdefault("norm_bias", filled.get("norm") == "layernorm")
    attention = {} if filled.get("attention") is None else filled["attention"]
    if isinstance(attention, dict) and "kind" not in attention:
        kv_heads = _whole(filled.get("kv_heads"))
        kind = "mha" if kv_heads == heads else "mqa" if kv_heads == 1 else "gqa"
        filled["attention"] = {"kind": kind, **attention}
    return filled


def _whole(value: Any) -> int | None:
    """The whole number that the field checks read from a value; `None` where they read none."""
    try:
        return int(_INTEGER.validate_python(value))
    except ValidationError:
        return None


class _Written(dict[str, Any]):
    """The fields as written, by dotted name; `None` for one that its own check refused."""

    @classmethod
    def of(cls, data: dict[str, Any], refused: set[str]) -> _Written:
        given = cls(data)
        for section, value in data.items():
            fields = value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
            if isinstance(fields, dict):
                given.update({f"{section}.{name}": inner for name, inner in fields.items()})
        return cls({name: value for name, value in given.items() if value is not None} | dict.fromkeys(refused))

    def number(self, name: str, default: int | None = None) -> int | None:
        return _whole(self[name]) if name in self else default

    def shown(self, name: str, default: object = None) -> str:
        """`moe.experts is 8`, `moe is given`, `moe.freq is not given (1)`."""
        if name not in self:
            return f"{name} is not given" + ("" if default is None else f" ({default})")
        value = self[name]
        literal = str(value).lower() if isinstance(value, bool) else repr(value)
        return f"{name} is {literal if isinstance(value, (str, int, float)) else 'given'}"


_NEEDED = {
    ("moe.experts", "moe.top_k"): "how many experts a token visits",
    ("moe.top_k", "moe.experts"): "how many experts there are",
    ("moe.experts", "moe.expert_ffn"): "the feed-forward width of one expert",
    ("attention.full_every", "attention.sliding_window"): "how far the other layers see",
    ("attention.global_head_dim", "attention.full_every"): "which layers have that width",
    ("attention.global_kv_heads", "attention.full_every"): "which layers have that many",
    ("full_attention_interval", "linear_attention"): "what the other layers are",
    ("mamba", "layer_pattern"): "which layers are state space (M)",
}
_AMONG_LAYERS = ("moe.freq", "mtp_layers", "linear_attention.layers", "attention.full_every", "full_attention_interval")
_WIDTHS = {
    "mla": ("kv_lora", "qk_nope", "qk_rope", "v_head"),
    "csa": ("q_lora", "o_lora", "o_groups", "compression"),
    "gated_deltanet": ("key_heads", "key_dim", "value_heads", "value_dim"),
    "kimi_delta_attention": ("heads", "dim"),
}
_MAY_HAVE = {"mla": ("q_lora",), "csa": ("qk_rope",)}
_KV_HEADS = {"mha": "as many", "mla": "as many", "gqa": "fewer", "mqa": "1", "csa": "1"}


def _contradictions(given: _Written) -> Iterator[tuple[str, str]]:
    """Fields that cannot hold together: the name of the one to mend, and what is wrong, with both values."""
    for (name, needed), why in _NEEDED.items():
        if given.get(name) and needed not in given:
            yield needed, f"{given.shown(name)} but {given.shown(needed)}: {why}"
    for name, bound in (("moe.top_k", "moe.experts"), *((name, "layers") for name in _AMONG_LAYERS)):
        value, limit = given.number(name), given.number(bound)
        if limit and value and value > limit:
            yield name, f"{name} {value} is more than {bound} {limit}"
    for name in ("kv_heads", "attention.global_kv_heads", "attention.o_groups"):
        part, heads = given.number(name), given.number("heads")
        if heads and part and heads % part:
            yield name, f"heads {heads} is not a multiple of {name} {part}"
    yield from _of_widths(given, "attention", ("mla", "csa"))
    yield from _of_widths(given, "linear_attention", ("gated_deltanet", "kimi_delta_attention"))
    for rules in (_of_heads, _of_experts, _of_layers):
        yield from rules(given)


def _of_widths(given: _Written, section: str, kinds: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Widths that the kind of a mixer needs and lacks, and widths of another kind."""
    kind = given.get(f"{section}.kind", "" if section == "attention" else None)
    for width in dict.fromkeys(width for name in kinds for width in _WIDTHS[name]):
        field, owners = f"{section}.{width}", [k for k in kinds if width in _WIDTHS[k] + _MAY_HAVE.get(k, ())]
        message = f"{given.shown(f'{section}.kind')} but {given.shown(field)}"
        if field in given and kind is not None and kind not in owners:
            yield field, f"{message}: a width of kind {' and '.join(owners)}"
        elif field not in given and width in _WIDTHS.get(kind or "", ()):
            yield field, message


def _of_heads(given: _Written) -> Iterator[tuple[str, str]]:
    heads, hidden, kind = given.number("heads"), given.number("hidden"), given.get("attention.kind")
    if heads and hidden and hidden % heads and "head_dim" not in given:
        yield "head_dim", f"hidden {hidden} is not a multiple of heads {heads}: give head_dim"
    kv_heads, wanted = given.number("kv_heads", heads), _KV_HEADS.get(kind or "")
    agrees = {"as many": kv_heads == heads, "fewer": kv_heads != heads, "1": kv_heads == 1}
    if heads and heads > 1 and kv_heads and wanted and not agrees[wanted]:
        message = f"attention.kind is {kind!r} but {given.shown('kv_heads', heads)} and heads is {heads}"
        yield "kv_heads", f"{message}: it has {wanted} key-value heads"
    position = given.get("position", "rope")
    if position == "learned" and "max_positions" not in given:
        yield "max_positions", "position is 'learned' but max_positions is not given: the rows of the position table"


def _of_experts(given: _Written) -> Iterator[tuple[str, str]]:
    layers, first, every = given.number("layers"), given.number("moe.first_dense", 0), given.number("moe.freq", 1)
    if layers and first and first > layers:
        yield "moe.first_dense", f"moe.first_dense {first} is more than layers {layers}"
    offset = given.number("moe.offset", 0)
    if offset and every and offset >= every:
        yield "moe.offset", f"moe.offset is {offset} but {given.shown('moe.freq', 1)}: must be less"
    yield from _of_groups(given)
    for field in ("moe.shared_ffn", "moe.shared_gate"):
        if given.get(field) and given.number("moe.shared_experts", 0) == 0:
            yield "moe.shared_experts", f"{given.shown(field)} but {given.shown('moe.shared_experts', 0)}"
    dense = "moe" if "moe" not in given else "moe.first_dense" if first else "moe.freq" if (every or 1) > 1 else None
    if "layer_pattern" in given:
        dense = "layer_pattern" if "-" in str(given["layer_pattern"]) else None
    if given.number("ffn") == 0 and dense:
        yield "ffn", f"ffn is 0 but {given.shown(dense)}: some layers have a dense MLP"


def _of_groups(given: _Written) -> Iterator[tuple[str, str]]:
    groups, taken = given.number("moe.groups", 1) or 1, given.number("moe.top_groups", 1) or 1
    experts = given.number("moe.experts")
    if experts and experts % groups:
        yield "moe.groups", f"moe.groups is {groups} but moe.experts is {experts}: not a multiple of it"
    if taken > groups:
        yield "moe.top_groups", f"moe.top_groups is {taken} but {given.shown('moe.groups', 1)}: must not be more"


def _of_layers(given: _Written) -> Iterator[tuple[str, str]]:
    layers, pattern = given.number("layers"), str(given.get("layer_pattern") or "")
    ratios = given.get("attention.compression")
    if layers and isinstance(ratios, (list, tuple)) and len(ratios) != layers:
        yield "attention.compression", f"attention.compression has {len(ratios)} numbers but layers is {layers}"
    if layers and pattern and len(pattern) != layers:
        yield "layer_pattern", f"layer_pattern has {len(pattern)} letters but layers is {layers}"
    for letter, section in {"M": "mamba", "E": "moe", "linear": "linear_attention"}.items() if pattern else ():
        if (letter in pattern) != (section in given):
            amount = pattern.count(letter) or "no"
            yield section, f"layer_pattern has {amount} {letter} layers but {given.shown(section)}"
    if given.get("linear_attention") and not {"full_attention_interval", "linear_attention.layers"} & given.keys():
        text = "linear_attention is given but neither full_attention_interval nor linear_attention.layers is"
        yield "linear_attention.layers", f"{text}: which layers it has"

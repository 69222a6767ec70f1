"""What contradicts in a model's fields as they are written, before they are an architecture, so that all is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import SchemaValidator, ValidationError, core_schema

_INTEGER = SchemaValidator(core_schema.int_schema())

MOST_LAYERS = 4096
"""Of a model: ten times those of the deepest that was trained at scale; costs are counted layer by layer."""
MOST_SIZE = 2**40
"""Of any other number of a model: products of a few of them are still numbers."""


def too_large(fields: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """Numbers of a model, by their dotted names, that are larger than any can be, and why."""
    for name, value in fields.items():
        most = MOST_LAYERS if name == "layers" else MOST_SIZE
        if isinstance(value, Mapping):
            yield from too_large(value, f"{where}{name}.")
        elif isinstance(value, int) and abs(value) > most:
            yield f"{where}{name}", f"{name} must be at most {most:,}"


def derived(data: dict[str, Any]) -> dict[str, Any]:
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


class Written(dict[str, Any]):
    """The fields as written, by dotted name; `None` for one that its own check refused."""

    @classmethod
    def of(cls, data: dict[str, Any], refused: set[str]) -> Written:
        """Of a model's fields, a section's as `section.name`; `refused`: names that their own check refused."""
        given = cls(data)
        for section, value in data.items():
            fields = value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
            if isinstance(fields, dict):
                given.update({f"{section}.{name}": inner for name, inner in fields.items()})
        return cls({name: value for name, value in given.items() if value is not None} | dict.fromkeys(refused))

    def number(self, name: str, default: int | None = None) -> int | None:
        """The whole number of that name; `default` where it is not written, None where it is none."""
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


def contradictions(given: Written) -> Iterator[tuple[str, str]]:
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


def _of_widths(given: Written, section: str, kinds: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Widths that the kind of a mixer needs and lacks, and widths of another kind."""
    kind = given.get(f"{section}.kind", "" if section == "attention" else None)
    for width in dict.fromkeys(width for name in kinds for width in _WIDTHS[name]):
        field, owners = f"{section}.{width}", [k for k in kinds if width in _WIDTHS[k] + _MAY_HAVE.get(k, ())]
        message = f"{given.shown(f'{section}.kind')} but {given.shown(field)}"
        if field in given and kind is not None and kind not in owners:
            yield field, f"{message}: a width of kind {' and '.join(owners)}"
        elif field not in given and width in _WIDTHS.get(kind or "", ()):
            yield field, message


def _of_heads(given: Written) -> Iterator[tuple[str, str]]:
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


def _of_experts(given: Written) -> Iterator[tuple[str, str]]:
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
    if given.get("moe.shortcut"):
        dense = "moe.shortcut"
        yield from _of_shortcut(given)
    if "layer_pattern" in given:
        dense = "layer_pattern" if "-" in str(given["layer_pattern"]) else None
    if given.number("ffn") == 0 and dense:
        yield "ffn", f"ffn is 0 but {given.shown(dense)}: some layers have a dense MLP"


def _of_shortcut(given: Written) -> Iterator[tuple[str, str]]:
    """What a layer of two attentions and two dense blocks beside its experts cannot have."""
    others = {"moe.first_dense": 0, "moe.freq": 1, "norms_per_layer": 2, "mtp_layers": 0, "residual_streams": 1}
    for field, only in others.items():
        if given.number(field, only) != only:
            yield field, f"moe.shortcut is true but {given.shown(field)}: must be {only}"
    for field in ("layer_pattern", "linear_attention", "attention.sliding_window", "attention.indexer"):
        if field in given:
            yield field, f"moe.shortcut is true but {given.shown(field)}: its layers are alike, with full attention"


def _of_groups(given: Written) -> Iterator[tuple[str, str]]:
    groups, taken = given.number("moe.groups", 1) or 1, given.number("moe.top_groups", 1) or 1
    experts = given.number("moe.experts")
    if experts and experts % groups:
        yield "moe.groups", f"moe.groups is {groups} but moe.experts is {experts}: not a multiple of it"
    if taken > groups:
        yield "moe.top_groups", f"moe.top_groups is {taken} but {given.shown('moe.groups', 1)}: must not be more"


def _of_modules(given: Written, pattern: str) -> Iterator[tuple[str, str]]:
    """What a module of multi-token prediction is made of where layers are one block each."""
    count, own = given.number("mtp_layers", 0), str(given.get("mtp_pattern") or "")
    if pattern and count and "mtp_pattern" not in given:
        yield "mtp_pattern", f"{given.shown('mtp_layers')} but {given.shown('mtp_pattern')}: the blocks of one module"
    if own and not pattern:
        yield "mtp_pattern", f"{given.shown('mtp_pattern')} but {given.shown('layer_pattern')}"
    for letter in sorted(set(own) - set(pattern)) if pattern else ():
        yield "mtp_pattern", f"mtp_pattern has {letter} but layer_pattern has no such layer"


def _of_layers(given: Written) -> Iterator[tuple[str, str]]:
    layers, pattern = given.number("layers"), str(given.get("layer_pattern") or "")
    ratios = given.get("attention.compression")
    yield from _of_modules(given, pattern)
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

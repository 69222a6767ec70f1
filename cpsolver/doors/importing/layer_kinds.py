"""Layers of other kinds than attention and feed-forward in a script's arguments: state-space, linear, selected keys.

Names and defaults by Megatron-LM d98e8a6 (training/arguments.py, core/ssm, core/transformer/transformer_config.py) and
MindSpeed-LLM c77308a1 (features_manager). `cpsolver/doors/export/model_args.py` writes the same options.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.inputs.language import say

_SCORED_RATIO = 4
"""Tokens to a key where MindSpeed-LLM's DeepSeek-V4 has an indexer."""
_CONVOLUTION = 4
"""Width of the convolution of Mamba-2 and of the gated delta rule where no argument gives it."""


def indexer_fields(arguments: Arguments) -> dict[str, Any]:
    """`indexer` of latent attention that works on selected keys; nothing without one."""
    variant = arguments.text("experimental-attention-variant")
    if variant != "dsa" and not arguments.has("enable-dsa-indexer"):
        return {}
    ours = variant == "dsa"  # these names have no defaults; MindSpeed-LLM's have (dsa_indexer_feature.py)
    sizes = {
        field: arguments.number(name) if ours else arguments.number(other, default)
        for field, name, other, default in (
            ("heads", "dsa-indexer-n-heads", "index-n-heads", 64),
            ("dim", "dsa-indexer-head-dim", "index-head-dim", 128),
            ("topk", "dsa-indexer-topk", "index-topk", 2048),
        )
    }
    names = {"heads": "dsa-indexer-n-heads", "dim": "dsa-indexer-head-dim", "topk": "dsa-indexer-topk"}
    for field, name in names.items():
        if sizes[field] is None:
            arguments.trouble(f"--{name}", "must be given with --experimental-attention-variant dsa")
    every = arguments.number("dsa-indexer-topk-freq") or arguments.number("index-topk-freq", 1)
    first = arguments.number("dsa-indexer-skip-topk-offset") or arguments.number("index-skip-topk-offset")
    return {"indexer": {**sizes, **({"every": every, "first": first or 1} if every and every > 1 else {})}}


def compressed_fields(arguments: Arguments, noops: Sequence[int]) -> dict[str, Any]:
    """`attention` of layers that compress keys, DeepSeek-V4's; nothing without them. `noops`: places that do nothing.

    MindSpeed-LLM c77308a1, tasks/models/transformer/deepseek4/csa.py: a ratio up to 1 compresses nothing, 4 has an
    indexer where --enable-dsa-indexer is given, and layers that do nothing have a ratio too.
    """
    ratios = arguments.numbers("compress-ratios")
    if ratios is None:
        return {}
    places = [place for place in range(arguments.number("num-layers", 0) or 0) if place not in noops]
    if places and len(ratios) <= places[-1]:
        message = say("has {ratios} numbers for {layers} layers", ratios=len(ratios), layers=places[-1] + 1)
        arguments.trouble("--compress-ratios", message)
    kept = [0 if ratio <= 1 else ratio for ratio in (ratios[place] for place in places if place < len(ratios))]
    scored = _SCORED_RATIO in kept and arguments.has("enable-dsa-indexer")
    if min(filter(None, kept), default=_SCORED_RATIO) != _SCORED_RATIO or (_SCORED_RATIO in kept) != scored:
        allowed = say("{ratio} the smallest above 1, with --enable-dsa-indexer", ratio=_SCORED_RATIO)
        arguments.trouble("--compress-ratios", "is of no architecture here", kept, allowed)
    return {
        "kind": "csa",
        "q_lora": arguments.number("q-lora-rank"),
        "qk_rope": arguments.number("qk-pos-emb-head-dim", 64),
        "o_lora": arguments.number("o-lora-rank", 1024),
        "o_groups": arguments.number("o-groups", 8),
        "sinks": True,
        "sliding_window": arguments.number("sliding-window-size", 128),
        "compression": kept,
        **(indexer_fields(arguments) if scored else {}),
    }


def linear_fields(arguments: Arguments) -> dict[str, Any]:
    """`linear_attention` and which layers attend fully, of layers with a gated delta rule; nothing without them."""
    variant = arguments.text("experimental-attention-variant")
    interval = arguments.number("full-attention-interval")
    if variant not in ("gated_delta_net", "gdn") and interval is None:
        return {}
    text, layers = arguments.text("linear-attention-freq"), arguments.number("num-layers")
    if text is not None:
        interval = int(text) if text.isdigit() else _interval(text)
    if interval is None:
        name = "linear-attention-freq"
        arguments.trouble(f"--{name}", say("must say that every n-th layer attends fully"), text, say("a number"))
    names = ("linear-num-key-heads", "linear-key-head-dim", "linear-num-value-heads", "linear-value-head-dim")
    sizes = [arguments.number(name) for name in names]
    for name, size in zip(names, sizes, strict=True):
        if size is None:
            arguments.trouble(f"--{name}", "must be given with layers of linear attention")
    fields = dict(zip(("key_heads", "key_dim", "value_heads", "value_dim"), sizes, strict=True))
    convolution = arguments.number("linear-conv-kernel-dim", _CONVOLUTION)
    rule = {"kind": "gated_deltanet", "conv": convolution, **fields}
    if interval is not None and layers is not None and interval > layers:  # none attends fully
        return {"linear_attention": {**rule, "layers": layers}}
    return {"linear_attention": rule, "full_attention_interval": interval}


def _interval(text: str) -> int | None:
    """n where a list of zeros and ones has a 0 in every n-th place; one more than it has places where it has none."""
    bits = bit_pattern(text)
    if not bits:
        return None
    every = (bits.index(0) if 0 in bits else len(bits)) + 1
    return every if bits == [int((place + 1) % every != 0) for place in range(len(bits))] else None


def pattern_length(arguments: Arguments) -> int | None:
    """Layers of a hybrid's pattern, which Megatron-LM d98e8a6 counts itself where --num-layers is left out."""
    text = arguments.text("hybrid-layer-pattern") or arguments.text("hybrid-override-pattern")
    return len(text.replace("|", "").split("/")[0]) or None if text else None


def pattern_fields(arguments: Arguments) -> dict[str, Any]:
    """`layer_pattern` and `mamba` of a hybrid of state-space, attention and feed-forward blocks, if it is one."""
    text = arguments.text("hybrid-layer-pattern") or arguments.text("hybrid-override-pattern")
    if text is None:
        return {}
    main, *predicted = text.replace("|", "").split("/")
    modules = [each for each in predicted if each]
    own, count = (set(modules), len(modules)) if modules else _legacy_modules(arguments)
    if len(own) > 1 or not all(re.fullmatch(r"[M*E-]+", each) for each in (main, *own)):
        allowed = say("M, *, E and -, | between stages, and after / those of each module of multi-token prediction")
        arguments.trouble("--hybrid-layer-pattern", "has blocks that no architecture here says", text, allowed)
        return {}
    counted = arguments.number("num-layers")
    if counted is not None and counted != len(main):
        arguments.trouble(
            "--hybrid-layer-pattern",
            say("has {main} blocks, --num-layers is {counted}", main=len(main), counted=counted),
            text,
        )
    fields: dict[str, Any] = {"layers": len(main), "layer_pattern": main}
    if own:
        fields |= {"mtp_layers": count, "mtp_pattern": own.pop()}
    if "M" in main:
        fields["mamba"] = _mamba(arguments)
    return fields


def _legacy_modules(arguments: Arguments) -> tuple[set[str], int]:
    """The layers of a module of multi-token prediction where the pattern has none, and how many modules there are
    (Megatron-LM's training/arguments.py, validate_args, makes one of the two)."""
    own, count = arguments.text("mtp-hybrid-override-pattern"), arguments.number("mtp-num-layers", 0, least=0)
    return ({own}, count) if own and count else (set(), 0)


def _mamba(arguments: Arguments) -> dict[str, Any]:
    """The state-space mixer: Megatron-LM's defaults, and heads of twice the hidden size in all."""
    width = arguments.number("mamba-head-dim", 64) or 64
    hidden = arguments.number("hidden-size", 0) or 0
    return {
        "heads": arguments.number("mamba-num-heads", max(1, 2 * hidden // width)),
        "head_dim": width,
        "groups": arguments.number("mamba-num-groups", 8),
        "state": arguments.number("mamba-state-dim", 128),
        "conv": _CONVOLUTION,
    }


def bit_pattern(text: str) -> list[int] | None:
    """`([0]*3+[1]*58)` or `([0]+[1]*3)*2` as a list; None for anything else."""
    text = text.replace(" ", "")
    while inner := re.search(r"\(([^()]*)\)", text):
        bits = _sum(inner.group(1))
        if bits is None:
            return None
        text = f"{text[: inner.start()]}[{','.join(map(str, bits))}]{text[inner.end() :]}"
    return _sum(text)


def _sum(text: str) -> list[int] | None:
    """`[0]*3+[1]*58` as a list."""
    bits: list[int] = []
    for term in text.split("+"):
        match = re.fullmatch(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?", term, re.ASCII)
        if match is None:
            return None
        part, times = [int(bit) for bit in match.group(1).split(",")], int(match.group(2) or 1)
        if len(bits) + len(part) * times > _MOST_PLACES:
            return None
        bits += part * times
    return bits


_MOST_PLACES = 10_000
"""Layers that a pattern may name."""

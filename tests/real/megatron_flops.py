"""Megatron-LM's own count of a model's FLOP, taken out of its source, for the arguments that are exported.

    python -m tests.real.megatron_flops MEGATRON/megatron/training/training.py COMMIT

writes tests/cost/data/megatron_flops.json: of every model of the catalogue that Megatron-LM trains, FLOP of a token in
sequences of 4,096.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cpsolver.doors.export.dialect import MEGATRON_LM
from cpsolver.doors.export.model_args import expert_flags, model_flags, padded_vocabulary, special_flags
from cpsolver.profiles.framework import load_launcher
from models_zoo import Architecture, architecture_names, load_architecture
from tests.support.checkout import ROOT

SEQUENCE = 4096
COUNTED = ROOT / "tests" / "cost" / "data" / "megatron_flops.json"
_SYMBOLS = SimpleNamespace(MAMBA="M", GDN="G", ATTENTION="*", MLP="-", MOE="E")


def formula(text: str) -> Callable[..., float]:
    """num_floating_point_operations of the source of training.py, with its few imports in their simplest form."""
    tree = ast.parse(text)
    own = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "num_floating_point_operations"
    ]
    allocation = SimpleNamespace(
        Symbols=_SYMBOLS, get_hybrid_layer_counts=lambda pattern: {each: pattern.count(each) for each in "MG*-E"}
    )

    def imported(name: str, *rest: Any) -> Any:
        return allocation if name.endswith("hybrid_layer_allocation") else builtins.__import__(name, *rest)

    names: dict[str, Any] = {
        "__builtins__": {**vars(builtins), "__import__": imported},
        "is_hybrid_model": lambda args: args.hybrid_layer_pattern is not None,
        "is_linear_attention_variant": lambda variant: variant == "gated_delta_net",
        "is_gated_delta_net_variant": lambda variant: variant == "gated_delta_net",
    }
    exec(compile(ast.Module(list(own), []), "training.py", "exec"), names)
    counted: Callable[..., float] = names["num_floating_point_operations"]
    return counted


def arguments_of(model: Architecture, sequence: int) -> SimpleNamespace:
    """The exported options as the parser would have them, as far as the formula asks for them."""
    flags = (*model_flags(model, sequence, MEGATRON_LM), *expert_flags(model, MEGATRON_LM), *special_flags(model))
    told = {name[2:].replace("-", "_"): _value(values) for name, *values in flags}
    pattern = model.layer_pattern and model.layer_pattern + model.mtp_layers * f"/{model.mtp_pattern}"
    told |= {"padded_vocab_size": padded_vocabulary(model, 1), "hybrid_layer_pattern": pattern}
    told.setdefault("num_query_groups", model.heads)
    told["swiglu"] = model.gated_mlp  # the formula asks for this gate alone, and would count one matrix less of others
    told["group_query_attention"] = told.get("group_query_attention", False) and model.attention.kind != "mla"
    if model.moe is not None and model.layer_pattern is None:
        told["moe_layer_freq"] = [int(model.has_experts(layer)) for layer in range(model.layers)]
    asked: tuple[str, ...] = ("num_experts", "mtp_num_layers", "moe_ffn_hidden_size", "moe_latent_size", "q_lora_rank")
    asked += ("moe_router_topk", "moe_shared_expert_intermediate_size", "experimental_attention_variant", "swiglu")
    asked += ("linear_attention_freq", "multi_latent_attention", "attention_output_gate", "spec", "gdp_num_householder")
    sizes = ("linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads")
    unused = dict.fromkeys((*sizes, "linear_conv_kernel_dim"), 0)
    return SimpleNamespace(**{**dict.fromkeys(asked), **unused, **told})


def _value(values: list[str]) -> Any:
    if not values:
        return True
    text = values[0]
    if text.startswith("["):
        return json.loads(text)
    return int(text) if text.isdigit() else text


def counted_models() -> tuple[str, ...]:
    """Models that Megatron-LM trains and whose attention its formula knows: it has no count of selected keys."""
    launcher = load_launcher("megatron-lm")
    every = {name: load_architecture(name) for name in architecture_names()}
    return tuple(name for name, m in every.items() if not launcher.untrained(m) and m.attention.indexer is None)


def counts(text: str) -> dict[str, float]:
    """FLOP of a token of each of these models."""
    count = formula(text)
    models = {name: arguments_of(load_architecture(name), SEQUENCE) for name in counted_models()}
    return {name: count(arguments, 1) / SEQUENCE for name, arguments in models.items()}


def _main(path: str, commit: str) -> None:
    found = {name: round(value) for name, value in counts(Path(path).read_text(encoding="utf-8")).items()}
    source = f"Megatron-LM {commit}, training/training.py, num_floating_point_operations, sequences of {SEQUENCE}"
    COUNTED.write_text(json.dumps({"source": source, "flop_of_a_token": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])

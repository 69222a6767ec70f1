"""A script's techniques as fields of a spec's `training`: precision, dropout, optimizer, offload and the like.

docs/techniques.md has the flag of each switch, with its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from cpsolver.doors.importing.arguments import Arguments, pairs
from cpsolver.doors.importing.deepspeed_file import WEIGHTS_AWAY
from cpsolver.doors.importing.degrees import own_experts
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import Strategy
from cpsolver.profiles.switches import MuonTpMode
from cpsolver.profiles.techniques import techniques
from cpsolver.spec.training import OFFLOAD_MODULES

_SWAPPED = {"input_norm": "attn_norm", "self_attention": "attention", "post_attention_norm": "mlp_norm"}
"""MindSpeed's --swap-modules by the names of the spec: modules of Megatron's legacy layers."""
_SWAPPED_CORE = {"input_layernorm": "attn_norm", "self_attention": "attention", "pre_mlp_layernorm": "mlp_norm"}
"""The same of Megatron-Core's layers, of which the default has attention alone (docs/zh/features/swap_attention.md)."""
_RECIPES = {"delayed": "delayed", "tensorwise": "current", "blockwise": "blockwise", "mxfp8": "mx"}
"""Megatron-LM's --fp8-recipe by the names of the spec."""
_SHARED_CHECKPOINTS = ("distribute-saved-activations", "distribute-checkpointed-activations")
"""Megatron-LM's flag by its names, up to 2.6 the latter."""
_PARTITIONED = ("deepspeed", "deepspeed-activation-checkpointing", "partition-activations")
"""The same in Megatron-DeepSpeed, whose megatron/initialize.py asks for all of them (bigscience-workshop 8387ae1)."""
_ON_HOST = ("deepspeed", "deepspeed-activation-checkpointing", "checkpoint-in-cpu")
"""What has inputs of recomputed layers wait on the host: the same file."""
_LORA_RANK = 16
"""Of --lora-r, which MindSpeed-LLM c77308a1 has as its default (features_manager/finetune/lora.py)."""
_SELECTED = ("fused_adamw", "fused_torch_adamw", "adamw")
"""MindSpeed's --optimizer-selection where it is Adam as usual (028de58, docs/zh/features)."""
_ADAM = ("adam", "adamw", "fusedadamw")
"""Names of Adam; the last two are of HabanaAI's Megatron-DeepSpeed (891d6db)."""


def training_fields(arguments: Arguments, sequence: int | None, batch: int | None) -> dict[str, Any]:
    """The section `training` of the spec; what is wrong goes to `arguments.troubles`.

    `sequence`: tokens in a sequence; `batch`: sequences in a step; None where not known.
    """
    precision = _precision(arguments)
    dropout = [arguments.real(name, 0.1) for name in ("attention-dropout", "hidden-dropout")]
    fields: dict[str, Any] = {
        "global_batch_size": batch,
        "sequence_length": sequence,
        "precision": precision,
        **({"dropout": True} if any(dropout) else {}),
        **_optimizer(arguments, precision),
        **_offload(arguments),
    }
    if (capacity := _capacity(arguments)) >= 1:
        fields["expert_capacity_factor"] = capacity
    if arguments.has("triangle-attn") and not arguments.has("use-flash-attn"):
        fields["triangle_attention"] = True
    if arguments.has("recompute-mla-up-proj"):
        fields["recompute_mla_up_proj"] = True
    shared = [name for name in _SHARED_CHECKPOINTS if arguments.has(name)]
    if shared or all(arguments.has(name) for name in _PARTITIONED):
        fields["distribute_saved_activations"] = (arguments.number("tensor-model-parallel-size", 1) or 1) > 1 or None
    if all(arguments.has(name) for name in _ON_HOST):
        fields["cpu_checkpointing"] = True
    fields |= _narrow(arguments, precision)
    if "DDP-impl" in arguments.given and not arguments.has("mlp-layer-fusion"):
        fields["fused_gate_up"] = False  # AscendSpeed: two GEMMs
    fields |= {**_launches(arguments), "expandable_segments": _grows_in_place(arguments)}
    return {name: value for name, value in fields.items() if value is not None}


def adapter_fields(arguments: Arguments, model: Mapping[str, Any]) -> dict[str, Any]:
    """`lora` of the section, by MindSpeed-LLM's arguments; nothing without adapters, or where layers take none."""
    given = arguments.values("lora-target-modules") if arguments.has("lora-target-modules") else ()
    targets = [pairs("adapted").get(name, name) for name in given]
    special = [name for name in ("moe", "mtp_layers", "layer_pattern", "linear_attention") if model.get(name)]
    if not targets or special or model.get("attention", {}).get("kind") == "mla":
        return {}
    lora: dict[str, Any] = {"rank": arguments.number("lora-r", _LORA_RANK), "targets": targets}
    return {"lora": {**lora, **({"quantized_base": "nf4"} if arguments.has("qlora") else {})}}


def _capacity(arguments: Arguments) -> float:
    """What an expert takes at most, by its even share of the tokens; 0 where it takes all that come.

    By Megatron's name, or Megatron-DeepSpeed's (4efb479d, megatron/arguments.py), where it is 1 by default and the rest
    is dropped, and whose dense models have one expert.
    """
    named, all_that_come = arguments.has("moe-train-capacity-factor"), arguments.has("disable-moe-token-dropping")
    if named or arguments.of_deepspeed():
        dense = arguments.text("num-experts", "1") == "1"
        return (
            0.0
            if dense or all_that_come or own_experts(arguments)
            else arguments.real("moe-train-capacity-factor", 1.0)
        )
    if arguments.has("moe-capacity-factor"):  # MegaBlocks', where 0 drops nothing
        return arguments.real("moe-capacity-factor", 0.0)
    return arguments.real("moe-expert-capacity-factor", 0.0)


def capacity_notes(arguments: Arguments) -> list[str]:
    """A note where an expert takes less than its even share of the tokens, which no spec says."""
    if not 0 < (capacity := _capacity(arguments)) < 1:
        return []
    told = say(
        "experts take {capacity:g} of their even share of the tokens, and all of it here; time and memory are "
        "predicted too high",
        capacity=capacity,
    )
    return [told]


def gathered_tokens(arguments: Arguments, plan: Strategy | None, usual: bool) -> tuple[dict[str, Any], list[str]]:
    """`moe_dispatcher` where all tokens are gathered on all ranks of experts, and a note; `usual`: that is the default.

    Megatron-LM d98e8a6, transformer_config.py (moe_token_dispatcher_type) and moe/token_dispatcher.py.
    """
    own = "deepspeed_moe" in arguments.given.get("moe-model-type", ())  # MindSpeed 028de58, with its own all-to-alls
    if own or arguments.text("moe-token-dispatcher-type", "allgather" if usual else "") != "allgather":
        return {}, []
    if plan is not None and plan.ep * plan.etp == 1:
        return {}, []
    note = later(
        "every token goes to all ranks of experts (training.moe_dispatcher allgather, Megatron's default); alltoall "
        "sends it to those alone that have its experts"
    )
    return {"moe_dispatcher": "allgather"}, [say(note)]


def _narrow(arguments: Arguments, precision: str) -> dict[str, Any]:
    """What 8 and 4 bits are used for: recipe, and weights that are held so only."""
    if precision == "nvfp4":
        return {"fp8_parameter_gather": arguments.has("fp4-param-gather")}
    if precision != "fp8":
        return {}
    given = arguments.text("fp8-recipe", "delayed")
    if given not in _RECIPES:
        arguments.trouble("--fp8-recipe", "is not planned for", given, ", ".join(_RECIPES))
    return {"fp8_recipe": _RECIPES.get(str(given)), "fp8_parameter_gather": arguments.has("fp8-param-gather")}


def _launches(arguments: Arguments) -> dict[str, Any]:
    """What the host is spared: CUDA graphs, and a dispatcher that need not wait for counts of tokens."""
    scope = " ".join(arguments.values("cuda-graph-scope") + arguments.values("cuda-graph-modules"))
    graphs = {"transformer_engine": "te", "local": "full" if "full_iteration" in scope else "te"}
    former = {"external-cuda-graph": "transformer_engine", "enable-cuda-graph": "local"}  # core_v0.12.1
    named = [impl for name, impl in former.items() if arguments.has(name)]
    impl = arguments.text("cuda-graph-impl", next(iter(named), "none"))
    fields: dict[str, Any] = {"cuda_graph": "full" if impl == "full_iteration" else graphs.get(str(impl))}
    if arguments.text("moe-token-dispatcher-type") == "flex":
        arguments.note_read("moe-enable-deepep")
        backend = arguments.text("moe-flex-dispatcher-backend", "deepep")
        fields["moe_dispatcher"] = backend if backend in ("deepep", "hybridep") else None
    elif arguments.text("moe-token-dispatcher-type", "allgather") != "allgather":
        fields["moe_dispatcher"] = "alltoall"
    return fields


def _grows_in_place(arguments: Arguments) -> bool | None:
    """What the script's environment tells PyTorch's allocator of its segments; None: nothing."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        options = (arguments.variables.get(name) or "").replace(" ", "").lower().split(",")
        if "expandable_segments:true" in options:
            return True
        if "expandable_segments:false" in options:
            return False
    return None


def _precision(arguments: Arguments) -> str:
    bf16, fp16 = arguments.has("bf16"), arguments.has("fp16")
    if bf16 and fp16:
        arguments.trouble("--bf16", "excludes --fp16: give one of them")
    if arguments.has("fp4-format"):
        if (recipe := arguments.text("fp4-recipe", "nvfp4")) != "nvfp4":
            arguments.trouble("--fp4-recipe", "is not planned for", recipe, "nvfp4")
        return "nvfp4"
    if arguments.has("fp8-format"):
        return "fp8"
    if not bf16 and not fp16:
        arguments.trouble("--bf16", "neither --bf16 nor --fp16 is given: training in fp32 is not planned for")
    return "fp16" if fp16 else "bf16"


def _optimizer(arguments: Arguments, precision: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    name = arguments.text("optimizer", "adam")
    names = {"lion": "lion", "cadam": "cadam", "muon": "muon", "dist_muon": "muon", "soap": "soap"}
    if name in names:
        fields["optimizer"] = names[name]
    elif name not in _ADAM:
        arguments.trouble("--optimizer", "is not planned for", name, "adam, lion, cadam, muon, soap")
    if fields.get("optimizer") == "muon":
        fields["muon_tp_mode"] = _muon(arguments)
    selected = arguments.text("optimizer-selection", _SELECTED[0])
    if selected in ("fused_ema_adamw", "ema_adamw"):
        fields["optimizer"] = "ema_adamw"
    elif selected not in _SELECTED:  # forks put others in the place of Adam, with states of their own
        arguments.trouble(
            "--optimizer-selection", "is not planned for", selected, ", ".join((*_SELECTED, "fused_ema_adamw"))
        )
    if arguments.has("o2-optimizer"):
        fields["optimizer"] = "o2_adamw"
    if arguments.has("quant-states"):
        arguments.text("quant-states")
        fields["optimizer"] = "quantized_states"
    if arguments.has("use-precision-aware-optimizer"):
        fields["optimizer"] = _precision_aware(arguments)
    if arguments.has("release-fp32-grad") and precision == "fp16":
        fields["release_fp32_gradients"] = True
    if arguments.has("reuse-fp32-param"):
        fields["reuse_fp32_parameters"] = True
    return fields


def _muon(arguments: Arguments) -> str:
    """What is orthogonalized of a split matrix; left out, each rank's share, as in Megatron-Core 0.16 to 0.19."""
    known = get_args(MuonTpMode)
    mode, steps = arguments.text("muon-tp-mode", "blockwise"), arguments.number("muon-num-ns-steps", 5)
    if mode not in known:
        arguments.trouble("--muon-tp-mode", "is not one of the choices", mode, ", ".join(known))
    if steps != techniques().muon_steps:
        arguments.trouble("--muon-num-ns-steps", "is not planned for", steps, f"{techniques().muon_steps:g}")
    if (precision := arguments.text("muon-fp32-matmul-prec", "medium")) != "medium":
        arguments.trouble("--muon-fp32-matmul-prec", "is not planned for", precision, say("medium, products in bf16"))
    return str(mode) if mode in known else "duplicated"


def _precision_aware(arguments: Arguments) -> str:
    moments = {arguments.text(name, "fp32") for name in ("exp-avg-dtype", "exp-avg-sq-dtype")}
    gradients = arguments.text("main-grads-dtype", "fp32")
    if moments == {"fp8"}:
        return "precision_aware_fp8"
    if moments == {"bf16"}:
        return "precision_aware_bf16_grads" if gradients == "bf16" else "precision_aware_bf16"
    return "precision_aware"


def _offload(arguments: Arguments) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if arguments.has("optimizer-cpu-offload"):
        fields["optimizer_offload"] = arguments.real("optimizer-offload-fraction", 1.0)
    if WEIGHTS_AWAY in arguments.given:
        arguments.note_read(WEIGHTS_AWAY)
        fields["parameter_offload"] = True
    if arguments.has("swap-optimizer"):
        fields["swap_optimizer"] = True
    if arguments.has("cpu-offloading-num-layers"):
        fields["offload_layers"] = arguments.number("cpu-offloading-num-layers", 0, least=0)
    if arguments.has("swap-attention"):
        swapped = arguments.text("swap-modules", ",".join(_SWAPPED)) or ""
        names = _SWAPPED_CORE if arguments.has("use-mcore-models") else _SWAPPED
        modules = [names.get(name.strip(), "") for name in swapped.split(",")]
        fields["activation_offload"] = [name for name in dict.fromkeys(modules) if name]
    if arguments.has("fine-grained-activation-offloading"):
        fields["activation_offload"] = offloaded_modules(arguments)[0]
    return fields


def offloaded_modules(arguments: Arguments) -> tuple[list[str], list[str]]:
    """The modules whose activations are sent to the host: those that a spec can say, and others."""
    if not arguments.has("fine-grained-activation-offloading"):
        return [], []
    names = [name for value in arguments.values("offload-modules") for name in value.split(",")]
    return [name for name in names if name in OFFLOAD_MODULES], [name for name in names if name not in OFFLOAD_MODULES]

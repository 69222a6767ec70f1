"""Megatron-Bridge: the same decisions as fields of its configuration, in a Python file and as a list of overrides."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from cpsolver.doors.export import bridge_vision
from cpsolver.doors.export.dialect import MEGATRON_LM, Flag
from cpsolver.doors.export.launch import Launch, refuse
from cpsolver.doors.export.megatron import environment_of, plan_notes, shared_flags
from cpsolver.doors.export.model_args import PADDING, UNSAID_BY_FIELDS, expert_flags, model_flags, model_notes
from cpsolver.doors.export.parallel_args import layer_flags, recompute_flags, uses_fsdp
from cpsolver.doors.export.script import nodes_file, train_script
from cpsolver.doors.export.training_args import attention_backend, check_switches, gradient_flags
from cpsolver.inputs.errors import one_line
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

DIALECT = replace(
    MEGATRON_LM,
    name="megatron-bridge",
    source="Megatron-Bridge 067f987",
    switches=("offload_layers", "cuda_graph", "moe_dispatcher", "distribute_saved_activations", "fp8_attention"),
    matrices=False,
)
_MODEL = {
    "--ffn-hidden-size": "ffn_hidden_size",
    "--norm-epsilon": "layernorm_epsilon",
    "--swiglu": "gated_linear_unit",
    "--quick-geglu": "gated_linear_unit",
    "--num-experts": "num_moe_experts",
    "--num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
    "--microbatch-group-size-per-virtual-pipeline-stage": "microbatch_group_size_per_vp_stage",
    "--decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "--te-rng-tracker": "use_te_rng_tracker",
}
"""Options whose field of cfg.model has another name."""
_ELSEWHERE = {
    "--micro-batch-size": "train.micro_batch_size",
    "--global-batch-size": "train.global_batch_size",
    "--use-distributed-optimizer": "ddp.use_distributed_optimizer",
    "--num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
    "--use-megatron-fsdp": "ddp.use_megatron_fsdp",
    "--data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "--ckpt-format": "checkpoint.ckpt_format",
    "--overlap-grad-reduce": "ddp.overlap_grad_reduce",
    "--overlap-param-gather": "ddp.overlap_param_gather",
    "--optimizer": "optimizer.optimizer",
    "--use-precision-aware-optimizer": "optimizer.use_precision_aware_optimizer",
    "--optimizer-cpu-offload": "optimizer.optimizer_cpu_offload",
    "--optimizer-offload-fraction": "optimizer.optimizer_offload_fraction",
}
"""Options that are fields of another part of the configuration."""
_MIXED = {
    "delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "current": "bf16_with_fp8_current_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mx": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""The configuration of mixed_precision.py for each recipe."""
_TYPES = ("--exp-avg-dtype", "--exp-avg-sq-dtype", "--main-grads-dtype")
_TYPES_THERE = {"bf16": "torch.bfloat16", "fp8": "torch.uint8"}
_NEGATED = {
    "--untie-embeddings-and-output-weights": "share_embeddings_and_output_weights",
    "--disable-bias-linear": "add_bias_linear",
    "--no-bias-swiglu-fusion": "bias_activation_fusion",
    "--no-bias-gelu-fusion": "bias_activation_fusion",
    "--no-bias-dropout-fusion": "bias_dropout_fusion",
    "--no-rope-fusion": "apply_rope_fusion",
    "--no-overlap-p2p-communication": "overlap_p2p_comm",
}
"""Options that turn a field of cfg.model off."""
_ACTIVATIONS = {"squared_relu": "activations", "quick_gelu": "fusions.fused_bias_geglu"}
"""Activation functions of megatron.core -> their modules."""
_LEFT_OUT: tuple[str, ...] = ("--group-query-attention", "--multi-latent-attention", "--bf16", "--fp16", "--fp8-format")
_LEFT_OUT += (
    "--fp8-recipe",
    "--fp8-param-gather",
    "--reuse-grad-buf-for-mxfp8-param-ag",
    "--fp4-format",
    "--fp4-recipe",
)
_LEFT_OUT += ("--fp4-param-gather", "--max-position-embeddings", "--grad-reduce-in-bf16", "--attention-backend")
_LEFT_OUT += (
    "--no-check-for-nan-in-loss-and-grad",
    "--squared-relu",
    "--make-vocab-size-divisible-by",
    "--tp-comm-overlap",
    "--moe-layer-freq",
)
"""Options that the file says in words of its own, or that are no fields."""
_UNUSED: dict[str, Any] = {
    "model.sequence_parallel": False,
    "model.virtual_pipeline_model_parallel_size": None,
    "model.pipeline_model_parallel_layout": None,
    "model.num_layers_in_first_pipeline_stage": None,
    "model.num_layers_in_last_pipeline_stage": None,
    "model.account_for_embedding_in_pipeline_split": False,
    "model.account_for_loss_in_pipeline_split": False,
    "model.microbatch_group_size_per_vp_stage": None,
    "model.cp_comm_type": None,
    "model.hierarchical_context_parallel_sizes": None,
    "model.recompute_granularity": None,
    "model.recompute_method": None,
    "model.recompute_num_layers": None,
    "model.recompute_modules": None,
    "model.distribute_saved_activations": False,
    "model.overlap_moe_expert_parallel_comm": False,
    "model.fine_grained_activation_offloading": False,
    "model.cpu_offloading": False,
    "ddp.use_megatron_fsdp": False,
    "ddp.num_distributed_optimizer_instances": 1,
    "optimizer.use_precision_aware_optimizer": False,
    "optimizer.optimizer_cpu_offload": False,
    "dist.use_megatron_fsdp": False,
}
"""What a recipe may have set, with the values that mean without it: written wherever the plan says nothing else."""
_BACKEND = "model.attention_backend"
"""A field whose values are of a type that overrides cannot say."""
_NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")
_LISTS = ("--recompute-modules", "--offload-modules", "--hierarchical-context-parallel-sizes", "--cuda-graph-scope")


def megatron_bridge(problem: Problem, s: Strategy) -> Launch:
    """Megatron-Bridge of 2026-08; raises CannotExpress."""
    check_switches(problem.spec.training, DIALECT.name, DIALECT.switches)
    refuse([*_unknown_here(problem), *bridge_vision.unknown(problem, s)])
    flags = [*shared_flags(problem, s, DIALECT), *recompute_flags(problem, s), *layer_flags(problem, s, DIALECT)]
    values = {**_UNUSED, **dict(fields(flags)), **dict(_own(problem, s)), **dict(_adapters(problem))}
    if problem.encoder is not None:
        values = _beside_encoder(problem, s, values)
    overrides = tuple(f"{name}={hydra_value(value)}" for name, value in values.items() if name != _BACKEND)
    environment = environment_of(problem, s)
    files = {
        "plan.py": _file(problem, s, values),
        "train.sh": train_script(problem, s, (), environment, "plan.py", ()),
        "nodes.txt": nodes_file(problem, s),
    }
    own_notes = model_notes(problem.model, problem.sequence, DIALECT, unsaid=UNSAID_BY_FIELDS)
    notes = (
        *(note for note in plan_notes(problem, s, DIALECT) if "DATA_ARGS" not in note),
        say("plan.py's configure(cfg) sets the fields on any recipe; run as a script {does}", does=_as_script(problem)),
        say(
            "as overrides the fields miss attention's backend and what plan.py has as PRECISION: the "
            "recipe's would stand"
        ),
        say("data, tokenizer, learning rate and checkpoints are not the plan's: set cfg's other parts"),
        *(own_notes if problem.encoder is None else ()),
        *_finetuning_notes(problem),
        *(bridge_vision.notes(problem, s) if problem.encoder is not None else ()),
    )
    return Launch(DIALECT.name, overrides, environment, files, "train.sh", notes, "train.sh")


def _beside_encoder(problem: Problem, s: Strategy, values: dict[str, Any]) -> dict[str, Any]:
    """The fields without those of the model's shape, which its own provider has."""
    shape = [*model_flags(problem.model, problem.sequence, DIALECT), *expert_flags(problem.model, DIALECT)]
    own = dict(fields(flag for flag in shape if flag[0] not in ("--seq-length", "--moe-grouped-gemm")))
    dropped = (*own, "model.moe_layer_freq", "model.vocab_size")
    kept = {name: value for name, value in values.items() if name not in dropped}
    return {**kept, **dict(bridge_vision.fields(problem, s))}


def fields(flags: Iterable[Flag]) -> Iterator[tuple[str, Any]]:
    """Fields of the configuration and their values, of those of Megatron-LM's options that have such."""
    for name, *values in flags:
        if name in _LEFT_OUT:
            continue
        if name in _NEGATED:
            yield f"model.{_NEGATED[name]}", False
        elif name in _TYPES:
            yield f"optimizer.{name[2:].replace('-', '_')}", _TYPES_THERE[values[0]]
        else:
            own = _MODEL.get(name, name[2:].replace("-", "_"))
            yield _ELSEWHERE.get(name, f"model.{own}"), _value(name, values)


def _value(name: str, values: list[str]) -> Any:
    if name in _LISTS:
        return [int(value) if value.isdigit() else value for value in values]
    if not values:
        return True
    text = values[0]
    if name == "--window-size":
        return tuple(map(int, text.split(",")))
    if text.startswith("["):
        return json.loads(text)
    try:
        return int(text)
    except ValueError:
        return float(text) if _NUMBER.fullmatch(text) else text


def _own(problem: Problem, s: Strategy) -> Iterator[tuple[str, Any]]:
    """What the fields say otherwise than Megatron-LM's options."""
    training, stack = problem.spec.training, problem.stack
    yield "mixed_precision", _MIXED.get(str(problem.recipe), f"{training.precision}_mixed")
    yield "model.vocab_size", problem.model.vocab
    yield "model.should_pad_vocab", True
    yield "model.make_vocab_size_divisible_by", PADDING
    yield "dataset.seq_length", problem.sequence
    yield "ddp.grad_reduce_in_fp32", stack.gradient_reduce_bytes != 2
    flags = set(gradient_flags(problem, s))
    yield "ddp.overlap_grad_reduce", ("--overlap-grad-reduce",) in flags
    for part in ("ddp", "optimizer"):  # a recipe turns these on, and one of the two turns the other on
        yield f"{part}.use_distributed_optimizer", s.distributed_optimizer
        yield f"{part}.overlap_param_gather", ("--overlap-param-gather",) in flags
    yield _BACKEND, f"AttnBackend.{attention_backend(problem, s)}"
    yield "model.tp_comm_overlap", bool(stack.tensor_overlap > 0 and s.sequence_parallel)
    if problem.model.moe is not None:
        yield "model.moe_layer_freq", [int(problem.model.has_experts(layer)) for layer in range(problem.model.layers)]
    if uses_fsdp(s):
        yield "dist.use_megatron_fsdp", True
    if training.offload_layers:
        yield "model.cpu_offloading", True
    if training.cuda_graph in ("te", "full"):
        yield "rng.te_rng_tracker", True
    if training.cuda_graph == "full":  # the host does not look at losses and gradients between steps
        yield "ddp.check_for_nan_in_grad", False
        yield "rerun_state_machine.check_for_nan_in_loss", False


def _adapters(problem: Problem) -> Iterator[tuple[str, Any]]:
    """Fields of LoRA, or of CanonicalLoRA where parts of fused layers have adapters of their own."""
    lora = problem.lora
    if lora is None:
        return
    yield "peft.target_modules", list(lora.targets)
    yield "peft.dim", lora.rank
    yield "peft.dropout", lora.dropout
    if problem.model.moe is not None:  # of the full rank
        yield "peft.share_expert_adapters", lora.share_expert_adapters
        yield "peft.normalize_moe_lora", False
    if not lora.of_parts:
        yield "peft.a2a_experimental", lora.all_to_all


def _unknown_here(problem: Problem) -> Iterator[str]:
    """What of adapters Megatron-Bridge has no field for."""
    lora = problem.lora
    if lora is not None and lora.quantized_base is not None:
        yield say(
            "training.lora.quantized_base is {quantized_base}: Megatron-Bridge holds no frozen layers in 4 bits",
            quantized_base=lora.quantized_base,
        )
    if lora is not None and lora.of_parts and lora.all_to_all:
        yield say("training.lora.all_to_all: Megatron-Bridge has it for adapters of fused layers alone")


def _as_script(problem: Problem) -> str:
    if problem.lora is None:
        return say("it trains on made-up data") if problem.encoder is None else say("it trains on made-up images")
    return say("it fine-tunes the weights in PRETRAINED_CHECKPOINT on SQuAD, once cfg.tokenizer names a tokenizer")


def _finetuning_notes(problem: Problem) -> Iterator[str]:
    if problem.lora is not None:
        yield say("LoRA's alpha is not the plan's: cfg.peft.alpha")
    if problem.spec.training.packs:
        yield say(
            "sequences are packed by cfg.dataset.offline_packing_specs with packed_sequence_size {sequence:,}, "
            "first_fit_decreasing say",
            sequence=problem.sequence,
        )


def _precision(problem: Problem) -> dict[str, bool]:
    """Fields of MixedPrecisionConfig, which overwrites those of ddp when the training starts (mixed_precision.py)."""
    fields = {"grad_reduce_in_fp32": problem.stack.gradient_reduce_bytes != 2}
    recipe, narrow = problem.recipe, problem.narrow_weights
    if recipe is None:
        return fields
    if recipe == "current":  # its own configuration keeps the first and the last layer in 16 bits
        fields["first_last_layers_bf16"] = False
    if recipe == "mx":
        fields["reuse_grad_buf_for_mxfp8_param_ag"] = narrow
    if problem.fp8_attention:
        fields["fp8_dot_product_attention"] = True
    return {**fields, "fp4_param_gather" if recipe == "nvfp4" else "fp8_param_gather": narrow}


def hydra_value(value: Any) -> str:
    """A value as Hydra's overrides have it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(str, value))}]"
    return f"'{value}'" if isinstance(value, str) and "|" in value else str(value)


def _file(problem: Problem, s: Strategy, fields: dict[str, Any]) -> str:
    encoder = problem.encoder is not None
    imports, maker = ([], list(bridge_vision.provider_lines(problem))) if encoder else _new_model(problem)
    lines = [
        f'"""{_in_docstring(problem.model.name)} on {s.devices} devices: a plan of apss-cp for Megatron-Bridge."""',
        "",
        "import torch",
        *imports[:1],
        "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
        "from megatron.core.transformer.enums import AttnBackend",
        *imports[1:],
        "",
        "FIELDS = {",
        *(f"    {name!r}: {_literal(value)}," for name, value in fields.items()),
        "}",
        f"PRECISION = {_precision(problem)!r}",
        *maker,
        "",
        "",
        "def configure(cfg):",
        '    """Set the plan on a ConfigContainer whose model is set."""',
        *(["    check(cfg.model)"] if encoder else []),
        *_new_adapters(problem),
        "    for name, value in FIELDS.items():",
        "        *path, last = name.split('.')",
        "        part = cfg",
        "        for step in path:",
        "            part = getattr(part, step)",
        "        setattr(part, last, value)",
        "    cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision)",
        "    for name, value in PRECISION.items():",
        "        setattr(cfg.mixed_precision, name, value)",
        "    return cfg",
        "",
        "",
        "if __name__ == '__main__':",
        *_runs(problem),
    ]
    return "\n".join(lines) + "\n"


def _new_model(problem: Problem) -> tuple[list[str], list[str]]:
    """Lines that import what a provider of the model's shape needs, and lines that make it."""
    latent = problem.model.attention.kind == "mla"
    provider = "mla_provider import MLAModelProvider" if latent else "gpt_provider import GPTModelProvider"
    activation = {"relu2": "squared_relu", "gelu": "torch.nn.functional.gelu", "quick_geglu": "quick_gelu"}
    function = activation.get(problem.model.activation, "torch.nn.functional.silu")
    imports = [f"from megatron.bridge.models.{provider}"]
    if function in _ACTIVATIONS:
        imports.append(f"from megatron.core.{_ACTIVATIONS[function]} import {function}")
    return imports, [
        "",
        "",
        "def model():",
        '    """A provider with the model\'s shape; configure() fills in the rest."""',
        "    shape = {name[6:]: value for name, value in FIELDS.items() if name.startswith('model.')}",
        f"    return {provider.split()[-1]}(activation_func={function}, **shape)",
    ]


def _runs(problem: Problem) -> Iterable[str]:
    """Lines of the file run as a script."""
    if problem.encoder is not None:
        return bridge_vision.training_lines(problem)
    return _trains(problem) if problem.lora is None else _FINETUNES


def _new_adapters(problem: Problem) -> Iterator[str]:
    """Lines that give a configuration adapters of the plan's class."""
    lora = problem.lora
    if lora is not None:
        module, name = ("canonical_lora", "CanonicalLoRA") if lora.of_parts else ("lora", "LoRA")
        yield f"    from megatron.bridge.peft.{module} import {name}"
        yield ""
        yield f"    if not isinstance(cfg.peft, {name}):"
        yield f"        cfg.peft = {name}()"


def _trains(problem: Problem) -> Iterator[str]:
    """Lines that train all weights on made-up data."""
    yield "    from megatron.bridge.recipes.common import _pretrain_common"
    yield "    from megatron.bridge.training.gpt_step import forward_step"
    yield "    from megatron.bridge.training.pretrain import pretrain"
    yield ""
    yield "    cfg = _pretrain_common()"
    yield "    cfg.model = model()"
    yield "    cfg.tokenizer.tokenizer_type = 'NullTokenizer'"
    yield f"    cfg.tokenizer.vocab_size = {problem.model.vocab - 1}"
    yield "    cfg.train.train_iters = 10"
    yield "    pretrain(config=configure(cfg), forward_step_func=forward_step)"


_FINETUNES = (
    "    import os",
    "",
    "    from megatron.bridge.recipes.common import _peft_common",
    "    from megatron.bridge.training.finetune import finetune",
    "    from megatron.bridge.training.gpt_step import forward_step",
    "",
    "    cfg = _peft_common()",
    "    cfg.model = model()",
    "    cfg.checkpoint.pretrained_checkpoint = os.environ['PRETRAINED_CHECKPOINT']",
    "    cfg.train.train_iters = 10",
    "    finetune(config=configure(cfg), forward_step_func=forward_step)",
)
"""Lines that train adapters beside a checkpoint's weights."""


def _in_docstring(text: str) -> str:
    """Text that neither ends the docstring around it nor escapes anything in it."""
    return one_line(text).replace("\\", r"\\").replace('"', r"\"")


def _literal(value: Any) -> str:
    return value if isinstance(value, str) and value.startswith(("torch.", "AttnBackend.")) else repr(value)

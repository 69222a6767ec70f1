"""The commented spec that `apss-cp init` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from cpsolver.inputs.language import say
from cpsolver.plans.dimensions import DIMENSIONS
from cpsolver.spec.search import Decisions

_TEMPLATE = """\
# What to train, on what. Three parts are needed; everything else has the default that stands here.
# A field that is commented out shows an example; `null` or leaving it out means its default.

model: {model}  # a name (`apss-cp models`) or Hugging Face repository, a .yaml or .json file, or its fields

cluster:
  num_gpus: {num_gpus}  # devices in use, 1 to 1,048,576; a multiple of gpus_per_node
  gpus_per_node: {gpus_per_node}  # devices in a node; default 8
  chips: {chips}  # name: most devices of it (`apss-cp chips`); -1 or null: no limit
  # A chip that the catalogue lacks: chips: {{mychip: {{max: 64, file: mychip.yaml}}}}
  # One with other cards: chips: {{{chip}: {{max: 64, network_gbit_s: 100, memory_gib: 40, nvlink: none}}}}
  network: null  # superpod-h100 say (`apss-cp networks`), or figures (docs/network.md); default null: the chips' own
  memory_margin: null  # share of device memory kept free, 0 to 0.5; default: the stack's, 0.04 for megatron-core
  idle: false  # true: a plan may leave whole nodes idle; default false
  prices: null  # dollars per device-hour, 2.5 or {{{chip}: 2.5}} say; default null: not known

training:
  global_batch_size: {global_batch_size}  # sequences in one optimizer step, 1 to 1,048,576
  sequence_length: {sequence_length}  # tokens in a sequence, 1 to 1,048,576
  precision: bf16  # bf16, fp16, fp8, nvfp4 or fp32; default bf16
  dropout: false  # true: hidden and attention dropout in use (masks are kept); default false
  fused_kernels: true  # fused norms, rotary embedding, bias and activation; default true
  expert_imbalance: 1.0  # tokens at the most loaded device's experts over the mean, 1 to 64; default 1
  expert_capacity_factor: null  # no device's experts take more than this times their share, 1 or more; default null
  # Techniques that save memory or time (docs/techniques.md):
  # One of adam, precision_aware, precision_aware_bf16, precision_aware_bf16_grads, precision_aware_fp8,
  # quantized_states, cadam, ema_adamw, o2_adamw, lion, muon, soap; default adam
  optimizer: adam
  muon_tp_mode: duplicated  # muon and tp: duplicated or distributed (whole matrices), blockwise; default duplicated
  release_fp32_gradients: false  # fp16: no fp32 copy of the gradients (AscendSpeed --release-fp32-grad); default false
  reuse_fp32_parameters: false  # bf16: weights are half of their master (MindSpeed --reuse-fp32-param); default false
  optimizer_offload: 0.0  # share of the optimizer's states and work on the host, 0 to 1; default 0
  parameter_offload: false  # sharded weights wait on the host (DeepSpeed's offload_param); default false
  swap_optimizer: false  # states wait on the host between steps (MindSpeed --swap-optimizer); default false
  # Modules whose inputs wait on the host for the backward pass: [attention], or some of attn_norm, qkv_linear,
  # core_attn, attn_proj, mlp_norm, expert_fc1, moe_act; default null: none
  activation_offload: null
  offload_layers: 0  # layers whose activations wait on the host (--cpu-offloading-num-layers); default 0
  recompute_activation_function: false  # results of activation functions made again (MindSpeed); default false
  recompute_mla_up_proj: false  # latent attention's queries, keys, values made again (MindSpeed); default false
  mla_swap_core_attn_out: false  # DualPipeV: results of latent attention's core on the host (MindSpeed); default false
  recompute_mlp_layers: 0  # layers whose feed-forward blocks are recomputed (MindSpeed's swap-attention); default 0
  distribute_saved_activations: false  # recomputed layers' inputs shared out over tp ranks (Megatron); default false
  cpu_checkpointing: false  # recomputed layers' inputs wait on the host (DeepSpeed); default false
  moe_zero_memory: null  # experts' inputs and activations made again (MindSpeed): level0, level1; default null: kept
  triangle_attention: false  # attention without a flash kernel leaves masked blocks out (AscendSpeed); default false
  fused_gate_up: true  # gate and up projection are one product; false: two; default true
  moe_grouped_gemm: true  # one kernel for all experts of a device; false: one after another; default true
  gradient_accumulation_fusion: null  # which add up: none, dense, experts, all products; default null: the stack's
  fp8_parameter_gather: null  # fp8, nvfp4: weights held and gathered so only; default null: as the stack does
  fp8_activations: null  # fp8, nvfp4: inputs of the layers' products kept so too; default null: as the stack does
  fp8_recipe: null  # fp8: delayed, current, blockwise or mx scaling; default null: as the stack does on these chips
  fp8_attention: null  # fp8, nvfp4: attention's products are in 8 bits too; default null: as the stack does
  cuda_graph: null  # what CUDA graphs replay: none, te (parts of layers) or full; default null: as the stack does
  moe_dispatcher: null  # how tokens reach experts: alltoall, allgather, deepep or hybridep; default null: the stack's
  expandable_segments: null  # the allocator's segments grow in place (PyTorch); default null: as the stack does
  lora: null  # {{rank: 16, targets: [linear_qkv, linear_proj]}}: adapters alone are trained; default null: all weights
  lengths: null  # sequences' lengths: [{{tokens: 512, share: 3}}, {{tokens: 4096, share: 1}}]; default null: all equal
  packing: null  # with lengths: false: each is padded to sequence_length; default null: they fill windows of it
  images: null  # {{per_sequence: 4, patches: 1024, trained: true}}, for a model with vision; default null: text alone
  tokens: null  # of the whole training, 1.0e+12 say: days and dollars in reports; default null: not known

stack: null  # software-stack profile (`apss-cp stacks`); default null: the launcher's own, else the chips'
launcher: null  # framework that must be able to run the plan, megatron-lm say; default null: any

search:
  top: {top}  # how many plans, 1 to 100; default 3
  diverse: true  # true: of different layout families; false: the best, mostly near-twins; default true
  risk: 0.05  # the recommended plan's chance of running out of memory is lower, above 0 to 1; default 0.05
  objective: throughput  # throughput, cost (needs prices) or fewest_chips (needs deadline); default throughput
  deadline: null  # {{days: 30}}: the chance of meeting it (tokens here or in training); default null
  # time_limit_s: 60  # seconds, more than 0; default null: until proven best
  layer_split: auto  # auto: free; even_per_chip: equal in a chip type; even: equal everywhere; default auto
  recompute_scope: chip  # chip: recomputed layers equal in a chip type; stage: each its own; default chip
  dynamic_micro_batches: false  # true: microbatches may differ in size, where the stack runs that; default false
  # schedules: [1f1b, zb1p]  # pipeline schedules to try; default null: those of launcher or stack
  degrees_by_chip: null  # true: tp, cp, dp, ep of each chip type's own; false: equal; default: what the launcher runs

  # Decisions that the plan must take: one value, or a list of those allowed. Default: all free.
  pin:
{pins}

  # Values that the plan must not take: the same fields. Default: nothing is forbidden.
  forbid:
    # vpp: [3]
    # recompute: uniform
"""


_COMMENT = re.compile(r"(?P<code>.*\S  | *(?!# \w+: ))# (?P<words>(?:(?!  # ).)+)")
"""A line with a comment for people, which no example of a field is."""


def comments() -> Iterator[str]:
    """What the comments say, but for those of pins (`DIMENSIONS`): messages of the catalogue."""
    yield from (found["words"] for found in map(_COMMENT.fullmatch, _TEMPLATE.splitlines()) if found)


def _said(line: str) -> str:
    """The line with its comment in the language spoken."""
    found = _COMMENT.fullmatch(line)
    return f"{found['code']}# {say(found['words'])}" if found else line


def _pin_lines(chip: str, order: str) -> str:
    """An example of every pin, commented out."""
    entries = ((name, DIMENSIONS[name]) for name in Decisions.model_fields)
    lines = (
        f"    # {name}: {entry.example.format(chip=chip, order=order)}  # {say(entry.about)}" for name, entry in entries
    )
    return "\n".join(lines)


def starter_spec(
    *,
    model: str = "llama2-70b",
    num_gpus: int = 256,
    gpus_per_node: int = 8,
    chips: Mapping[str, int | None] | None = None,
    global_batch_size: int = 512,
    sequence_length: int = 4096,
    top: int = 3,
) -> str:
    """A spec in YAML with a comment on every field, in the language spoken.

    `chips` maps a name to its most devices (None: no limit).

    The text loads as a valid spec when the values given are valid; it is not checked here.
    """
    limits = chips if chips else {"a800": 128, "h800": 160}
    names = [_text(name) for name in limits]
    pairs = (f"{name}: {-1 if limit is None else limit}" for name, limit in zip(names, limits.values(), strict=True))
    return "".join(f"{_said(line)}\n" for line in _TEMPLATE.splitlines()).format(
        model=_text(model),
        num_gpus=num_gpus,
        gpus_per_node=gpus_per_node,
        chips="{" + ", ".join(pairs) + "}",
        chip=names[0],
        pins=_pin_lines(names[0], "[" + ", ".join(names) + "]"),
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        top=top,
    )


def _text(name: str) -> str:
    """A name as YAML text, quoted where it must be."""
    if re.fullmatch(r"[A-Za-z_][\w./-]*", name, re.ASCII) and name.lower() not in ("null", "true", "false"):
        return name
    return json.dumps(name)

"""The commented spec that `apss-cp init` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_TEMPLATE = """\
# What to train, on what. Three parts are needed; everything else has the default that stands here.
# A field that is commented out shows an example; `null` or leaving it out means its default.

model: {model}  # a catalogue name (`apss-cp models`), a .yaml or .json file, or the model's fields

cluster:
  num_gpus: {num_gpus}  # devices in use, 1 to 1,048,576; a multiple of gpus_per_node
  gpus_per_node: {gpus_per_node}  # devices in a node; default 8
  chips: {chips}  # name: most devices of it (`apss-cp chips`); -1 or null: no limit
  # A chip that the catalogue lacks: chips: {{mychip: {{max: 64, file: mychip.yaml}}}}
  memory_margin: 0.04  # share of device memory kept free, 0 to 0.5; default 0.04

training:
  global_batch_size: {global_batch_size}  # sequences in one optimizer step, 1 to 1,048,576
  sequence_length: {sequence_length}  # tokens in a sequence, 1 to 1,048,576
  precision: bf16  # bf16 or fp16; default bf16
  dropout: false  # true: hidden and attention dropout in use (masks are kept); default false
  fused_kernels: true  # fused norms, rotary embedding, bias and activation; default true

stack: megatron-core  # software-stack profile (`apss-cp stacks`); default megatron-core

search:
  top: {top}  # how many plans, 1 to 100; default 3
  # time_limit_s: 60  # seconds, more than 0; default null: until proven best
  layer_split: auto  # auto: free; even_per_chip: equal in a chip type; even: equal everywhere; default auto
  recompute_scope: chip  # chip: recomputed layers equal in a chip type; stage: each its own; default chip

  # Decisions that the plan must take: one value, or a list of those allowed. Default: all free.
  pin:
    # tp: [2, 4, 8]  # tensor-parallel size, 1 or more
    # pp: [1, 2, 4, 8]  # pipeline-parallel size, 1 or more
    # dp: [8, 16, 32]  # data-parallel size, 1 or more
    # mbs: [1, 2]  # micro batch, sequences, 1 or more
    # vpp: 1  # virtual-pipeline chunks in a stage, 1 or more
    # sequence_parallel: true  # Megatron sequence parallelism: true or false
    # distributed_optimizer: true  # optimizer state sharded over dp: true or false
    # flash_attention: true  # true or false
    # recompute: [none, selective]  # none, selective, block, uniform; or {{chip: [...]}}
    # recompute_num_layers: [0, 1, 2]  # 0 or more; or {{chip: [...]}}
    # stages: {{{chip}: [2]}}  # chip: number of pipeline stages that it serves, 0 or more
    # chip_order: {order}  # chip names as they stand along the pipeline
    # stage_chips: [{chip}, {chip}]  # one chip name for each stage
    # layers: [40, 40]  # layers of each stage

  # Values that the plan must not take: the same fields. Default: nothing is forbidden.
  forbid:
    # vpp: [3]
    # recompute: uniform
"""


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
    """A spec in YAML with a comment on every field; `chips` maps a name to its most devices (None: no limit).

    The text loads as a valid spec when the values given are valid; it is not checked here.
    """
    limits = chips if chips else {"a800": 128, "h800": 160}
    names = [_text(name) for name in limits]
    pairs = (f"{name}: {-1 if limit is None else limit}" for name, limit in zip(names, limits.values(), strict=True))
    return _TEMPLATE.format(
        model=_text(model),
        num_gpus=num_gpus,
        gpus_per_node=gpus_per_node,
        chips="{" + ", ".join(pairs) + "}",
        chip=names[0],
        order="[" + ", ".join(names) + "]",
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        top=top,
    )


def _text(name: str) -> str:
    """A name as YAML text, quoted where it must be."""
    if re.fullmatch(r"[A-Za-z_][\w./-]*", name, re.ASCII) and name.lower() not in ("null", "true", "false"):
        return name
    return json.dumps(name)

"""What takes inputs from outside, each with good inputs to start from, as commands or readers in this process."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from click.testing import CliRunner

from cpsolver.commands.main import main

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
OTHERS = ("sweep.yaml", "seed-published-strategy.yaml")
"""Examples that are no specs."""
DOCUMENTED = {0, 2, 3, 4}
"""Exit codes that a user's input may lead to (README.md); 70 is a bug."""

SPEC = b"""\
model: {layers: 4, hidden: 512, ffn: 1024, heads: 8, kv_heads: 4, vocab: 4000, name: m}
cluster:
  num_gpus: 8
  gpus_per_node: 4
  chips: {a800: {max: 8, memory_gib: 79}, h800: 4}
  prices: {a800: 1.2, h800: 2.5}
training: {global_batch_size: 16, sequence_length: 1024}
search:
  top: 2
  layer_split: auto
  deadline: {tokens: 1.0e+9, days: 30}
  pin: {tp: [1, 2], mbs: 1, vpp: 1, recompute: {'*': [none, block]}}
  forbid: {flash_attention: false, cp: 2}
"""
EXPERTS = b"""\
model:
  layers: 4
  hidden: 512
  ffn: 1024
  heads: 8
  vocab: 4000
  moe: {experts: 4, top_k: 2, expert_ffn: 256, shared_experts: 1, first_dense: 1}
  attention: {kind: mla, kv_lora: 128, qk_nope: 64, qk_rope: 32, v_head: 64}
cluster: {num_gpus: 8, gpus_per_node: 4, chips: {h800: -1}, memory_margin: 0.05}
training: {global_batch_size: 16, sequence_length: 1024, precision: fp8, dropout: false}
launcher: megatron-lm
search: {top: 1, pin: {pp: 2, mbs: 1, cp: 1}}
"""
PLAN = b"""\
tp: 2
pp: 2
dp: 2
mbs: 1
sequence_parallel: true
distributed_optimizer: true
flash_attention: true
stages:
  - {chip: a800, layers: [2], recompute: block, recompute_layers: 1}
  - {chip: h800, layers: [2]}
"""
NETWORK = b"""\
model: llama2-7b
cluster:
  num_gpus: 32
  gpus_per_node: 8
  chips: {a800: 16, h800: 16}
  network:
    gbit_s: 200
    levels:
      - {name: rack, nodes: 2, oversubscription: 2}
      - {name: all, extra_latency_us: 5}
    links: [{between: [a800, h800], gbit_s: 50, latency_us: 2}]
    in_network_reduction: true
training: {global_batch_size: 64, sequence_length: 4096}
"""
CHIP = b"""\
model: {layers: 4, hidden: 512, ffn: 1024, heads: 8, vocab: 4000}
cluster:
  num_gpus: 8
  gpus_per_node: 8
  chips:
    mine:
      spec:
        peak_tflops: {bf16: 300, fp8: 600}
        memory: {capacity_gb: 80, bandwidth_gb_s: 2000}
        scale_up: {bandwidth_gb_s: 200, domain_size: 8, topology: switched}
        scale_out: {bandwidth_gbit_s: 100}
        efficiency: {gemm_bf16: 0.7, network: 0.8}
training: {global_batch_size: 16, sequence_length: 1024}
"""
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32000,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1024,
    "first_k_dense_replace": 2,
    "moe_layer_freq": 1,
    "kv_lora_rank": 256,
    "q_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
PLAIN_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "rope_scaling": None,
    "hidden_act": "silu",
}
SCRIPT = b"""\
#!/bin/bash
export NNODES=${NNODES:-2}
GPUS_PER_NODE=8
WORLD=$(($GPUS_PER_NODE*$NNODES))
TP=2; PP="2"
SIZES=(--num-layers 12 --hidden-size 1024 --num-attention-heads 16)
if [ "$TP" -gt 1 ]; then EXTRA="--sequence-parallel"; else EXTRA=""; fi
case $PP in 1) V="" ;; *) V="--num-layers-per-virtual-pipeline-stage 3" ;; esac
for X in a b; do NAMES="$NAMES $X"; done
batch() { echo $((GPUS_PER_NODE * $1)); }
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP $V $EXTRA "${SIZES[@]}" \\
  --ffn-hidden-size 4096 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 \\
  --global-batch-size $(batch 4) --vocab-size 32000 --bf16 --use-distributed-optimizer --swiglu \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
  | tee ${LOG_DIR:-logs}/train.log
"""
LOG = (
    b"[2026-01-01 00:00:0%d] iteration %8d/    20 | consumed samples: %8d | elapsed time per iteration (ms): 101%d.5 | "
    b"throughput per GPU (TFLOP/s/GPU): 120.1 | learning rate: 1.0E-04 | global batch size:    16 | "
    b"lm loss: 1.0E+01 | loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations:   0 |\n"
)
LOGS = (
    b"".join(LOG % (n % 10, n, 16 * n, n % 10) for n in range(1, 9))
    + b"[Rank 0] (after 3 iterations) memory (MB) | allocated: 1000.0 | max allocated: 2000.0 | max reserved: 2200.0\n",
    b"{'loss': 1.0, 'train_runtime': 12.1, 'train_samples_per_second': 3.1}\n[rank0]: torch.OutOfMemoryError: CUDA out "
    b"of memory. Tried to allocate 2.00 GiB\n",
    b"[titan] step:  2  loss:  8.1  memory: 12.31GiB(15.43%)  tps: 7,123  tflops: 12.3  mfu: 3.9%\n" * 4,
)
SWEEP = b"""\
base:
  model: llama2-7b
  cluster: {num_gpus: 64, chips: a800}
  training: {global_batch_size: 480, sequence_length: 4096}
  search: {top: 1, time_limit_s: 5}
grid:
  model: [llama2-7b, llama2-13b]
  cluster.num_gpus: {from: 32, to: 128, step: 32}
  mix:
    - {label: a800, cluster.chips: a800, cluster.prices: {a800: 1.2}}
    - {label: half h800, cluster.chips: {a800: 50 %, h800: 50 %}}
list:
  - {label: long, cluster.num_gpus: 128, training.sequence_length: 32768}
"""


@dataclass(frozen=True)
class Door:
    """A way in: good inputs, and what takes one in a folder where it lies as `name`, with what lies beside it.

    `enter` returns an exit code and all that was printed.
    """

    inputs: tuple[bytes, ...]
    name: str
    enter: Callable[[Path], tuple[int, str]]
    weight: int = 1
    beside: tuple[tuple[str, bytes], ...] = ()


def _command(*words: str) -> Callable[[Path], tuple[int, str]]:
    """A command, whose exceptions come out as they are; `words` may name files of the folder with @."""

    def enter(folder: Path) -> tuple[int, str]:
        arguments = [str(folder / word[1:]) if word.startswith("@") else word for word in words]
        result = CliRunner().invoke(main, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return enter


def _sweep(folder: Path) -> tuple[int, str]:
    """A sweep and the cells that it comes to, without solving them."""
    from cpsolver import InputError
    from cpsolver.doors.batch.cases import make_cases
    from cpsolver.doors.batch.sweep import load_sweep

    try:
        cases = make_cases(load_sweep(folder / "sweep.yaml"))
    except InputError as error:
        return 2, str(error)
    return 0, f"{len(cases)} cells"


def _log(folder: Path) -> tuple[int, str]:
    """A log as a trial of tune reads it."""
    from cpsolver.doors.tune.logs import Expected, read_log

    read = read_log(folder / "train.log", Expected(16 * 1024, 8, {"mbs": "1", "gbs": "16"}), 2)
    return 0, str(read)


def _runs(rows: int) -> bytes:
    """Some published runs of which all is known."""
    with (ROOT / "cpsolver/evidence/runs/published_runs.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        known = [row for row in reader if row["complete"] == "1" and row["step_time_s"]]
        out = io.StringIO()
        writer = csv.DictWriter(out, reader.fieldnames or [])
        writer.writeheader()
        writer.writerows(known[5 : 5 + rows])
    return out.getvalue().encode()


def _overlay() -> bytes:
    """A calibration as one run on an A800 might have made it; its data is that of today's constants."""
    from cpsolver.profiles.constants import COORDINATES, SCHEMA, digests

    covered = [{"chip": name, "stack": "megatron-core", "runs": count} for name, count in (("a800", 1), ("a100", 0))]
    moved = {"published": 0.9, "learnt": 0.8, "position": -0.5, "sd_before": 0.1, "sd": 0.05, "rows": 1}
    slopes = {"a800": {"network": -0.1}}
    run = {"id": "one", "cluster": "c", "layout": "l", "off": 0.1, "at": [0.0] * COORDINATES, "slopes": slopes}
    file = {
        "schema": SCHEMA,
        "created": "2026-01-01",
        "apss_cp": "0.2.0",
        "runs_file": "runs.csv",
        "made_with": digests(),
        "covers": covered,
        "errors": {"before": 0.2, "after": 0.1, "inside_before": 0.5, "inside_after": 0.8},
        "chips": {"a800": {"network": moved}},
        "stacks": {},
        "runs": [run],
    }
    return json.dumps(file, indent=1).encode()


@cache
def all_doors() -> Mapping[str, Door]:
    """Name -> door."""
    examples = tuple(path.read_bytes() for path in sorted(EXAMPLES.glob("*.yaml")) if path.name not in OTHERS)
    spec = ("spec.yaml", SPEC)
    configs = tuple(json.dumps(each, indent=1).encode() for each in (CONFIG, PLAIN_CONFIG))
    script = (EXAMPLES / "mindspeed-llama-7b.sh").read_bytes()
    check = ("evaluate", "@spec.yaml", "--set", "pp=2", "--set", "tp=2")
    plain = PLAN.replace(b", recompute: block, recompute_layers: 1", b"")
    return {
        "spec": Door((SPEC, EXPERTS, *examples), "spec.yaml", _command(*check), 4),
        "spec, solved": Door(
            (SPEC, EXPERTS, CHIP), "spec.yaml", _command("solve", "@spec.yaml", "--time-limit", "1"), 1
        ),
        "network": Door((NETWORK,), "spec.yaml", _command(*check), 2),
        "chip": Door((CHIP,), "spec.yaml", _command(*check), 2),
        "strategy": Door(
            (PLAN,), "plan.yaml", _command("evaluate", "@spec.yaml", "--strategy", "@plan.yaml"), 3, (spec,)
        ),
        "ranks": Door((PLAN,), "plan.yaml", _command("ranks", "@spec.yaml", "--plan", "@plan.yaml"), 1, (spec,)),
        "spec, exported": Door(
            (SPEC,),
            "spec.yaml",
            _command("export", "@spec.yaml", "--to", "megatron-lm", "--plan", "@plan.yaml", "--job", "sbatch"),
            1,
            (("plan.yaml", plain),),
        ),
        "overlay": Door(
            (_overlay(),),
            "ours.yaml",
            _command("evaluate", "@spec.yaml", "--strategy", "@plan.yaml", "--calibration", "@ours.yaml"),
            2,
            (("spec.yaml", SPEC.replace(b"h800", b"a100")), ("plan.yaml", plain.replace(b"h800", b"a800"))),
        ),
        "script": Door((script, SCRIPT), "train.sh", _command("import", "@train.sh", "--chip", "a800"), 5),
        "config.json": Door(
            configs,
            "config.json",
            _command(
                *("import", "@config.json", "--chip", "h800", "--num-gpus", "64"),
                *("--global-batch-size", "64", "--sequence-length", "2048"),
            ),
            2,
        ),
        "runs": Door((_runs(3), _runs(1)), "runs.csv", _command("validate", "@runs.csv"), 2),
        "sweep": Door((SWEEP,), "sweep.yaml", _sweep, 2),
        "log": Door(LOGS, "train.log", _log, 3),
    }

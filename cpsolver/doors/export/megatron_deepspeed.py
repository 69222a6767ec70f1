"""BigScience's fork of Megatron-DeepSpeed: arguments of its pretrain_gpt.py, and DeepSpeed's file beside them.

Read in 8387ae1: megatron/arguments.py, megatron/enums.py, megatron/model/gpt_model.py, pretrain_gpt.py. It trains what
Megatron-LM has no arguments for: ALiBi, and a norm behind the embedding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from cpsolver.doors.export import deepspeed, model_args
from cpsolver.doors.export.dialect import CORE_0_12, Flag, flattened
from cpsolver.doors.export.launch import Launch, refuse
from cpsolver.doors.export.megatron import SCRIPT, environment_of
from cpsolver.doors.export.parallel_args import batch_flags, shares_checkpoints
from cpsolver.doors.export.script import node_notes, nodes_file, train_script
from cpsolver.doors.export.shared import unset_switches
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from models_zoo import Architecture

TARGET = "megatron-deepspeed"
_POSITIONS = {"rope": "rotary", "learned": "absolute", "alibi": "alibi"}
"""Our names of position embeddings -> those of --position-embedding-type."""
_GLU = ("swiglu", "geglu")
"""Activations that --glu-activation has by our names."""
_DATA = (
    *("--train-iters 10", "--lr 1e-4", '--data-path "${DATA_PATH:?}"'),
    *("--tokenizer-type PretrainedFromHF", '--tokenizer-name-or-path "${TOKENIZER_PATH:?}"'),
)
_OF_FILE = ("tensor_parallel", "activation_checkpointing", "pipeline")
"""Sections of DeepSpeed's file that the arguments say here."""


def export(problem: Problem, s: Strategy) -> Launch:
    """Arguments, script and DeepSpeed's file; raises CannotExpress with every reason why it cannot."""
    refuse(_refused(problem))
    flags = list(_flags(problem, s))
    config = {name: part for name, part in deepspeed.ds_config(problem, s).items() if name not in _OF_FILE}
    environment = environment_of(problem, s)
    files = {
        "train.sh": train_script(problem, s, flags, environment, SCRIPT, _DATA),
        deepspeed.CONFIG: json.dumps({"train_batch_size": problem.batch, **config}, indent=2) + "\n",
        "nodes.txt": nodes_file(problem, s),
    }
    notes = (*_notes(problem, s), *node_notes(problem, s))
    return Launch(TARGET, flattened(flags), environment, files, "train.sh", notes, "train.sh")


def _refused(problem: Problem) -> Iterator[str]:
    training = problem.spec.training
    has = ("optimizer", "expandable_segments", "distribute_saved_activations", "cpu_checkpointing")
    yield from unset_switches(problem, "Megatron-DeepSpeed", has)
    if training.precision not in ("bf16", "fp16"):
        yield say(
            "Megatron-DeepSpeed has no {precision}: training.precision may be bf16 or fp16",
            precision=training.precision,
        )
    if training.optimizer != "adam":
        yield say("Megatron-DeepSpeed has no optimizer {optimizer}: adam", optimizer=training.optimizer)


def _flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    training = problem.spec.training
    yield from _model(problem.model, problem.sequence)
    yield ("--pad-vocab-size-to", str(model_args.padded_vocabulary(problem.model, s.tp)))
    yield ("--tensor-model-parallel-size", str(s.tp))
    yield ("--pipeline-model-parallel-size", str(s.pp))
    yield from batch_flags(problem, s)
    yield (f"--{training.precision}",)
    if not training.dropout:
        yield ("--attention-dropout", "0.0")
        yield ("--hidden-dropout", "0.0")
    yield ("--optimizer", "adam")
    if s.recompute[0] == "uniform":
        yield ("--checkpoint-activations",)
        yield ("--checkpoint-num-layers", str(s.recompute_layers[0]))
        yield ("--deepspeed-activation-checkpointing",)
        if shares_checkpoints(problem, s):
            yield ("--partition-activations",)
        if training.cpu_checkpointing:
            yield ("--checkpoint-in-cpu",)
    yield ("--deepspeed",)
    yield ("--deepspeed_config", deepspeed.CONFIG)
    yield ("--zero-stage", str(s.zero_stage))


def _model(model: Architecture, sequence: int) -> Iterator[Flag]:
    yield ("--num-layers", str(model.layers))
    yield ("--hidden-size", str(model.hidden))
    yield ("--ffn-hidden-size", str(model.ffn or 4 * model.hidden))
    yield ("--num-attention-heads", str(model.heads))
    yield ("--kv-channels", str(model.head_dim))
    yield ("--seq-length", str(sequence))
    yield ("--position-embedding-type", _POSITIONS.get(model.position, "absolute"))
    if model.position != "rope":  # which the parser refuses beside it
        yield ("--max-position-embeddings", str(max(model.max_positions or sequence, sequence)))
    if model.embedding_norm:
        yield ("--embed-layernorm",)
    if model.gated_mlp and model.activation in _GLU:
        yield ("--glu-activation", model.activation)
        yield ("--no-bias-gelu-fusion",)
    if model.norm_epsilon is not None:
        yield ("--layernorm-epsilon", f"{model.norm_epsilon:g}")
    yield ("--make-vocab-size-divisible-by", str(model_args.PADDING))


def _notes(problem: Problem, s: Strategy) -> Iterator[str]:
    """What is the user's to do, and what of the model no option says."""
    model = problem.model
    yield say("data, tokenizer, learning rate and checkpoints are not the plan's: see DATA_ARGS in train.sh")
    yield say("vocabulary: {vocab} rows; --pad-vocab-size-to must be more than the tokenizer's", vocab=model.vocab)
    if problem.spec.training.precision == "bf16" and s.zero_stage == 0 and s.dp > 1:  # runtime/bf16_optimizer.py
        yield say("DeepSpeed's optimizer for bf16 shares its states out over the replicas without ZeRO too")
    lacking = {
        later("RMSNorm"): model.norm == "rmsnorm",
        later("a head of its own"): not model.tied_embeddings,
        later("layers without biases"): not (model.bias_qkv and model.bias_attention_out and model.bias_mlp),
        later("fewer heads of keys and values than of queries"): model.kv_heads < model.heads,
        later("latent attention"): model.attention.kind == "mla",
        later("experts"): model.moe is not None,
        later("multi-token prediction"): model.mtp_layers > 0,
        later("no positions"): model.position == "none",
    }
    for what, present in lacking.items():
        if present:
            yield say(model_args.UNSAID, name=model.name, what=say(what))
    said = ("positions", "norm after the embedding", *(["activation"] if model.activation in _GLU else []))
    yield from model_args.model_notes(model, problem.sequence, CORE_0_12, said)

"""Which format a file has, by its content: each of these is read as the arguments that it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cpsolver.doors.importing.flagscale_files import read_flagscale
from cpsolver.doors.importing.megatron_files import read_loongforge_model, read_megatron, read_test_case
from cpsolver.doors.importing.mindformers_files import read_mindformers
from cpsolver.doors.importing.nemo_files import read_nemo
from cpsolver.doors.importing.neox_files import read_neox
from cpsolver.doors.importing.paddle_files import read_paddle
from cpsolver.doors.importing.primus_files import read_primus
from cpsolver.doors.importing.reading import Reading
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.doors.importing.torchtitan_files import read_torchtitan, toml
from cpsolver.inputs.document import parse_yaml
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

Reader = Callable[[str, dict[str, Any]], Reading]


def _top(*names: str) -> re.Pattern[str]:
    """Fields that begin a line, of a YAML file."""
    return re.compile(rf"^[\"']?(?:{'|'.join(names)})[\"']?\s*:", re.MULTILINE)


_PRIMUS = re.compile(r"^ +framework\s*:", re.MULTILINE)
_PADDLE = re.compile(
    r"[\"'](?:(?:tensor|pipeline)_parallel_degree|(?:tensor|pipeline)_model_parallel_size|sharding|do_ptq)[\"']\s*:"
)
_PADDLE_YAML = _top(
    *("tensor_model_parallel_size", "tensor_parallel_degree", "sharding", "fine_tuning", "expert_model_parallel_size")
)
_NEOX = re.compile(r"^\s*[\"']?(?:pipe|model)[-_]parallel[-_]size[\"']?\s*:", re.MULTILINE)
_NEMO = re.compile(
    r"^ *(?:exp_manager|encoder_seq_length|megatron_amp_O2|tensor_model_parallel_size)\s*:", re.MULTILINE
)
_FORMATS: tuple[tuple[tuple[re.Pattern[str], ...], Reader], ...] = (
    ((_top("MODEL_ARGS"),), read_test_case),
    ((_top("language_model"), _top("model_parallel")), read_megatron),
    ((re.compile(r"^_target_:\s*loongforge", re.MULTILINE),), read_loongforge_model),
    ((_top("experiment"), _top("train", "defaults")), read_flagscale),
    ((_top("system"), _top("model"), _top("data")), read_flagscale),
    ((_top("parallel_config"), _top("model"), _top("runner_config", "trainer")), read_mindformers),
    ((_top("modules"), _PRIMUS), read_primus),
    ((_PADDLE, re.compile(r"[\"'](?:actor_)?model_name_or_path[\"']\s*:")), read_paddle),
    ((_PADDLE_YAML, _top("model_name_or_path"), _top("output_dir", "do_train")), read_paddle),
    ((_top("trainer"), _top("model"), _NEMO), read_nemo),
    ((_top("actor"), _top("critic"), _NEMO), read_nemo),
    ((_top("training"), re.compile(r"^ +trainer\s*:", re.MULTILINE), _NEMO), read_nemo),
    (
        (_top("defaults"), re.compile(r"^ *- *megatron_\w*config\b", re.MULTILINE)),
        read_nemo,
    ),  # what others are set over
    ((_top("trainer"), _top("inference", "gpt_model_file", "checkpoint_dir")), read_nemo),
    ((_top("encoder_seq_length"), _top("num_layers")), read_nemo),  # a checkpoint's model_config.yaml
    ((_NEOX,), read_neox),
)
"""What a file of each format has, all of it, and its reader."""
_SPEC = (_top("model"), _top("cluster"), _top("training"))
_LAUNCHER = (_top("stages"), _top("training_config", "launcher_scripts_path"))
_REINFORCED = (
    (_top("actor_rollout_ref"),),
    (re.compile(r"^ *adv(?:antage)?_estimator\s*:", re.MULTILINE),),
    (_top("megatron_training"),),
)
"""What files of verl (BrianPei/FlagScale f0dd97cc, examples/qwen3/conf/rl) and of MindSpeed-RL 05a90d77 have."""
_ELSEWHERE = (
    ("LLaMA-Factory", (_top("model_name_or_path"), _top("finetuning_type"))),
    ("Axolotl", (_top("base_model"), _top("datasets", "sequence_len"))),
    ("LLM Foundry", (_top("fsdp_config"), _top("max_seq_len", "variables"))),
)
"""Trainers of transformers' or of their own models, and what their files have."""
_DEEPSPEED = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization")


def recognised(
    text: str, words: Sequence[str] = (), given: Mapping[str, str] | None = None
) -> Callable[[str, str], Reading] | None:
    """The reader of the file's format, to be called with its name and its text; None: a script, or a config.json.

    `words`: of the command line that starts the training, and `given`, variables of the environment: NeMo's files take
    both as overrides and in interpolations. Raises InputError for a file that is known and cannot be imported alone.
    """
    if text.startswith("#!"):
        return None
    for marks, reader in _FORMATS:
        if all(mark.search(text) for mark in marks):
            return partial(_read, partial(read_nemo, words=words, given=given) if reader is read_nemo else reader)
    if all(re.search(rf"^\[{name}\]", text, re.MULTILINE) for name in ("model", "training")):
        return lambda name, content: read_torchtitan(name, toml(content, name))
    return _refused(text)


def _read(reader: Reader, name: str, text: str) -> Reading:
    return reader(name, parse_yaml(text, name).data)


def _refused(text: str) -> Callable[[str, str], Reading] | None:
    message = None
    if all(mark.search(text) for mark in _SPEC):
        message = say("is a spec already: there is nothing to import"), say("`apss-cp solve FILE`")
    elif all(mark.search(text) for mark in _LAUNCHER):
        message = (
            say("is the file of NeMo's launcher that names others: it says nothing of a training"),
            say("the file of the training, conf/training/MODEL/SIZE.yaml"),
        )
    elif text.lstrip().startswith("{") and _is_deepspeed(text):
        message = (
            say("is DeepSpeed's configuration, which names no model"),
            say("the script that gives it as --deepspeed_config"),
        )
    elif any(all(mark.search(text) for mark in marks) for marks in _REINFORCED):
        return _reinforced
    else:
        for framework, marks in _ELSEWHERE:
            if all(mark.search(text) for mark in marks):
                message = (
                    say("is a configuration of {framework}, which is not read", framework=framework),
                    say("the config.json of its model"),
                )
    if message is None:
        return None
    said, allowed = message

    def refuse(name: str, _text: str) -> Reading:
        raise InputError(Trouble("", said, allowed=allowed, file=name))

    return refuse


def _reinforced(name: str, _text: str) -> Reading:
    what = say("reinforcement, preferences or distillation, with more than one model")
    told = say("is {what}: only the training of a decoder is planned", what=what)
    raise OutOfScopeError(Trouble("", told, allowed=say("pretraining or tuning of a decoder"), file=name))


def _is_deepspeed(text: str) -> bool:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "model_type" not in data and any(name in data for name in _DEEPSPEED)

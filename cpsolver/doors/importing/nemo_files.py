"""NeMo 1's YAML of a GPT model (`megatron_gpt_config.yaml` and its kin) as Megatron-LM's arguments that mean the same.

Read in NeMo v2.0.0 (e938df32) and v1.23.0 (d2283e36), below nemo: collections/nlp/models/language_modeling
(megatron_gpt_model.py, megatron_base_model.py: fields, their defaults, what overrides what), collections/nlp/modules
/common/megatron (transformer.py, mlp.py: layers without Megatron-Core), collections/nlp/parts
(megatron_trainer_builder.py, utils_funcs.py), core/classes/modelPT.py and core/optim (optimizers);
optim.overlap_param_sync with Megatron-Core's optimizer in v2.1.0. Apex 6424da3b,
contrib/optimizers/distributed_fused_adam.py (its defaults).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.catalogue_match import tokens_by_name
from cpsolver.doors.importing.command import TrainingDevices
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.hydra import Interpolations, UndecidedError, composed, is_open, merged, overridden
from cpsolver.doors.importing.reading import Fields, Reading, as_tokens, flattened, table
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say

_GROUP = "training"
"""The launcher's group that its files of trainings are in."""
_MISSING_MAY_BE = ("hydra", "exp_manager", "model.data", "model.ub_tp_comm_overlap_cfg")
"""Places of files that `defaults` names and that change no plan."""
_CHECKPOINT = "model_config.yaml"
"""What a checkpoint (.nemo) has of its model."""
_PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16"}
_NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}
_ACTIVATIONS = {
    "gelu": "gelu",
    "approx-gelu": "gelu",
    "geglu": "geglu",
    "fast-geglu": "geglu",
    "reglu": "reglu",
    "fast-reglu": "reglu",
    "swiglu": "swiglu",
    "fast-swiglu": "swiglu",
    "squared-relu": "relu2",
}
"""Activations (utils_funcs.py, activation_to_func) -> ours; those that end in `glu` have a gate."""
_POSITIONS = {"learned_absolute": "learned", "rope": "rope", "alibi": "alibi", "none": "none"}
_BLOCKS = {"pre_ln": None, "post_ln": None}
_SPECS = dict.fromkeys(("", "te_gpt", "megatron_falcon_gpt", "megatron_gpt_full_te_layer_autocast"))
"""Layers by `model.name` whose time and memory are those of a plan, but for what other fields say."""
_SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
_OPTIMIZERS = dict.fromkeys((*_SHARDED, "fused_adam", "megatron_fused_adam", "adam", "adamw"))
_ADAPTED = {
    "attention_qkv": "linear_qkv",
    "attention_dense": "linear_proj",
    "mlp_fc1": "linear_fc1",
    "mlp_fc2": "linear_fc2",
    **{name: name for name in ("attention", "mlp", "all")},
}
"""Layers that get adapters (collections/nlp/parts/peft_config.py) -> ours."""
_RANK = 32
"""Of adapters, in NeMo's own file of tunings."""
_TYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32", "32": "fp32"}


class _NemoFields(Fields):
    """Fields by their dotted names, whose interpolations are read when they are asked for."""

    def __init__(self, data: Mapping[str, Any], file: str, given: Mapping[str, str] | None) -> None:
        alone = "model" not in data and "num_layers" in data  # a checkpoint's model_config.yaml
        whole = {"model": data} if alone else data
        super().__init__({".".join(path): value for path, value in flattened(whole)}, file, "nemo")
        self.values = Interpolations({**data, **whole}, given)

    def has(self, name: str) -> bool:
        """As of any format, once what the field stands for is known; what stays open is a trouble."""
        value = self.data.get(name)
        if is_open(value):
            self.data[name] = None
            try:
                self.data[name] = self.values.decided(value, tuple(name.split("."))[:-1])
            except UndecidedError as error:
                self._open(name, value, error.name)
        return super().has(name)

    def _open(self, name: str, value: Any, needed: str) -> None:
        if needed == "???":
            self.trouble(name, "is not given: the file leaves it open")
            return
        allowed = say("--set {name}=VALUE, or the value in its place", name=needed) if needed.isidentifier() else None
        self.trouble(name, say("needs {name}, which the file does not say", name=needed), value, allowed)

    def hint(self, name: str) -> str:
        """A text as far as it is known; it need not be."""
        value = self.data.get(name)
        self._asked.add(name)
        try:
            found = self.values.decided(value, tuple(name.split("."))[:-1]) if is_open(value) else value
        except UndecidedError:
            found = value
        return str(found or "")

    def spelt(self, name: str, choices: Mapping[str, Any], default: str) -> Any:
        """As `choice`, of a text in small letters or a number."""
        if self.has(name) and not isinstance(self.data[name], bool | list | dict):
            self.data[name] = str(self.data[name]).lower()
        return self.choice(name, choices, default)

    def unread(self) -> tuple[str, ...]:
        """As of any format, without those that are null or empty: they stand for what NeMo does without them."""
        return tuple(name for name in super().unread() if self.data[name] not in (None, [], {}, ""))


def read_nemo(
    name: str, data: dict[str, Any], words: Sequence[str] = (), given: Mapping[str, str] | None = None
) -> Reading:
    """A file that trains a GPT: the launcher's, one for megatron_gpt_pretraining.py, or a checkpoint's model_config.

    `words`: overrides, as on NeMo's command line. `given`: variables of the environment.
    """
    whole = data.get(_GROUP)
    data = composed(name, whole if isinstance(whole, dict) and "model" in whole else data, _MISSING_MAY_BE)
    data = overridden(_with_checkpoint(name, data), words, _GROUP, name)
    fields = _NemoFields(data, name, given)
    _scope(fields)
    fields.refuse()
    _needed(fields)
    tokens = (
        *fields.mapped(),
        *as_tokens("seq-length", _longest(fields)),
        *_layers(fields),
        *_kernels(fields),
        *_chunks(fields),
    )
    tokens += (*_recomputation(fields), *_states(fields), *_adapters(fields))
    model, (framework, notes) = _model(fields), _framework(fields)
    launched = _devices(fields)
    refusals, beside = tuple(_reasons(fields, "plan")), tuple(_reasons(fields, "beside"))
    hint = " ".join(fields.hint(f"model.tokenizer.{part}") for part in ("type", "model"))
    fields.close()
    notes = (*_differences(fields, model), *notes)
    if taken := fields.values.taken:
        shown = ", ".join(f"{variable}={value}" for variable, value in taken.items())
        told = say("defaults are taken for what the environment or the command line may set: {shown}", shown=shown)
        notes = (told, *notes)
    return Reading(
        later("configuration of NeMo"),
        tokens,
        framework,
        launched,
        model=model,
        training=_training(fields),
        refusals=(*refusals, *_partly(fields)),
        notes=(*notes, *beside),
        unread=fields.unread(),
        hint=hint,
    )


def _with_checkpoint(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """A tuning with the model of its checkpoint, where its model_config.yaml stands beside the file."""
    model = data.get("model")
    tunes = isinstance(model, dict) and "num_layers" not in model and model.get("restore_from_path") is not None
    path = None if name == "<stdin>" else Path(name).absolute().parent / _CHECKPOINT
    if not tunes or path is None or not path.is_file():
        return data
    found: dict[str, Any] = merged({"model": load_yaml(path).data}, data)
    return found


def _differences(fields: _NemoFields, model: Mapping[str, Any]) -> Iterator[str]:
    """Notes where what runs is not what the file seems to say."""
    if length := _longest(fields):
        told = later("sequences are as long as model.data says, {number}, not model.encoder_seq_length")
        yield say(told, number=length)
    if model["position"] == "none" and fields.data.get("model.position_embedding_type") != "none":
        yield say("model.position_embedding_type {kind}: Megatron-Core in NeMo has none of it, and takes no positions",
                  kind=fields.data["model.position_embedding_type"])  # fmt: skip
    apex = _optimizer(fields) == "distributed_fused_adam" and _halved(fields)
    if apex and fields.spelt("model.optim.dtype", _TYPES, "fp32") == "bf16":
        what = say("moments in 16 bits without master weights; memory is predicted too high")
        yield say("{names} is not in the plan: {what}", names="model.optim.dtype bf16", what=what)
    parallel = fields.flag("model.mcore_customization_config.parallel_attention")
    if "model.data.train_ds.file_names" in fields.data and not fields.flag("model.data.train_ds.packed_sequence"):
        told = later("sequences are as long as their data; they are taken as long as {name} here")
        yield say(told, name="model.encoder_seq_length")
    if parallel and fields.text("model.name") == "megatron_falcon_gpt":  # other layers do not ask for it
        what = say("attention and feed-forward blocks beside each other, with one norm; memory is predicted too high")
        yield say(
            "{names} is not in the plan: {what}", names="model.mcore_customization_config.parallel_attention", what=what
        )


def _scope(fields: _NemoFields) -> None:
    """Raises OutOfScopeError for a file of something else than a GPT; InputError where the model is in a checkpoint."""
    _outside(fields, "scope")
    if "model.num_layers" in fields.data:
        return
    given = fields.data.get("model.restore_from_path") is not None
    if given and not any(name.startswith("model.optim.") for name in fields.data):
        what = later("an evaluation, not a training")
        raise _outside_of(fields, "model.restore_from_path", what)
    if given or "model.data.train_ds.file_names" in fields.data:
        told = say("tunes a checkpoint (.nemo), and the file does not say its model")
        allowed = say("the checkpoint's {file} beside the file", file=_CHECKPOINT)
        where = "model.restore_from_path"
        raise InputError(Trouble(where, told, allowed=allowed, file=fields.file, path=tuple(where.split("."))))
    _outside(fields, "elsewhere")
    told = say("is no training of a GPT by NeMo: it has no model.num_layers")
    raise OutOfScopeError(Trouble("model", told, file=fields.file, path=("model",)))


def _outside(fields: _NemoFields, heading: str) -> None:
    """Raises OutOfScopeError where a field says that the file is of something else."""
    for pattern, what in fields.known[heading].items():
        if field := next((name for name in fields.data if re.search(pattern, name)), None):
            raise _outside_of(fields, field, what)


def _outside_of(fields: _NemoFields, field: str, what: str) -> OutOfScopeError:
    told = say("is {what}: only the training of a decoder is planned", what=say(what))
    return OutOfScopeError(Trouble(field, told, file=fields.file, path=tuple(field.split("."))))


def _core(fields: _NemoFields) -> bool:
    """Whether layers are Megatron-Core's."""
    return fields.flag("model.mcore_gpt")


def _layers(fields: _NemoFields) -> Iterator[str]:
    """Norms, positions, heads, biases and the vocabulary."""
    yield from as_tokens("normalization", fields.spelt("model.normalization", _NORMS, "layernorm"))
    if not fields.flag("model.bias", True):
        yield "--disable-bias-linear"
    groups = fields.number("model.num_query_groups")
    if groups is not None:
        yield from ("--group-query-attention", *as_tokens("num-query-groups", groups))
    if not fields.flag("model.share_embeddings_and_output_weights", True):
        yield "--untie-embeddings-and-output-weights"
    if _core(fields) and "model.encoder_seq_length" in fields.data:  # which has as many learned positions
        yield from as_tokens("max-position-embeddings", fields.number("model.encoder_seq_length"))
    window = fields.data["model.window_size"] if fields.has("model.window_size") else None
    yield from as_tokens("window-size", window[0] if isinstance(window, list) and window else window)
    fields.choice("model.attention_type", {"multihead": None}, "multihead")
    fields.choice("model.transformer_block_type", _BLOCKS, "pre_ln")
    fields.choice("model.name", _SPECS, "")
    vocab = fields.number("model.override_vocab_size")
    names = [fields.hint(f"model.tokenizer.{part}") for part in ("type", "model")]
    yield from as_tokens("vocab-size", vocab or next(filter(None, map(tokens_by_name, names)), None))


def _needed(fields: _NemoFields) -> None:
    """Note what NeMo has no default of, and lengths and accumulation that it would not run."""
    for part in ("ffn_hidden_size", "micro_batch_size", "global_batch_size", "encoder_seq_length"):
        name = f"model.{part}"
        if not fields.has(name) and not any(trouble.where == name for trouble in fields.troubles):
            fields.trouble(name, say("is not given"))
    stages = fields.number("model.pipeline_model_parallel_size", 1) or 1
    tunes = fields.has("model.data.train_ds.max_seq_length")
    if stages > 1 and not tunes and (length := _longest(fields)):
        told = say("is not model.encoder_seq_length, which stages send to each other")
        fields.trouble("model.data.seq_length", told, length, str(fields.data["model.encoder_seq_length"]))
    if (steps := fields.number("trainer.accumulate_grad_batches", 1)) != 1:
        fields.trouble("trainer.accumulate_grad_batches", say("must be 1: NeMo accumulates by its batches"), steps)


def _longest(fields: _NemoFields) -> int | None:
    """Tokens of a sequence of the data, where the file says another number than the model's."""
    own = fields.number("model.data.train_ds.max_seq_length")  # of a tuning
    length, tokens = own or fields.number("model.data.seq_length"), fields.number("model.encoder_seq_length")
    return length if length and tokens and length != tokens else None


def _model(fields: _NemoFields) -> dict[str, Any]:
    """Activation and positions, as fields of an architecture."""
    activation = fields.choice("model.activation", _ACTIVATIONS, "gelu")
    position = fields.spelt("model.position_embedding_type", _POSITIONS, "learned_absolute")
    if position == "alibi" and _core(fields):
        position = "none"
    return {"activation": activation, "gated_mlp": activation.endswith("glu"), "position": position}


def _kernels(fields: _NemoFields) -> Iterator[str]:
    """Attention's kernel: Transformer Engine's; Megatron-Core's own has none, NeMo's own layers by use_flash_attention.
    8 bits, and tensor parallelism's overlap, which needs sequence parallelism."""
    engine, flash = fields.flag("model.transformer_engine"), fields.flag("model.use_flash_attention")
    if not engine:
        yield from ("--transformer-impl", "local")
        if flash and not _core(fields):
            yield "--use-flash-attn"
    e4m3, hybrid = fields.flag("model.fp8_e4m3"), fields.flag("model.fp8_hybrid")
    if fields.flag("model.fp8"):
        if not e4m3 and not hybrid:
            fields.trouble("model.fp8", say("needs fp8_e4m3 or fp8_hybrid"))
        yield from as_tokens("fp8-format", "e4m3" if e4m3 else "hybrid")
        yield from as_tokens("fp8-param-gather", fields.flag("model.fp8_params"))
        yield from as_tokens("no-fp8-wgrad", not fields.flag("model.fp8_wgrad", True))
    else:
        fields.has("model.fp8_wgrad")
    if _overlapped(fields):
        yield "--tp-comm-overlap"
    if fields.flag("model.cpu_offloading"):
        yield from as_tokens("cpu-offloading-num-layers", fields.number("model.cpu_offloading_num_layers"))


def _overlapped(fields: _NemoFields) -> bool:
    """Whether tensor parallelism hides its exchanges, as far as NeMo leaves it on."""
    split = (fields.number("model.tensor_model_parallel_size", 1) or 1) > 1
    return fields.flag("model.ub_tp_comm_overlap") and fields.flag("model.sequence_parallel") and split


def _training(fields: _NemoFields) -> dict[str, Any]:
    """Whether experts run one after another, and gradients are added up apart, as by default.

    NeMo 8cfedd72, collections/nlp/models/language_modeling/megatron_base_model.py: products add them up with O2 only.
    """
    grouped, experts = fields.flag("model.moe_grouped_gemm"), fields.number("model.num_moe_experts", 1) or 1
    fused = fields.flag("model.gradient_accumulation_fusion") and _halved(fields)
    found = {} if fused else {"gradient_accumulation_fusion": "none"}
    return found | ({"moe_grouped_gemm": False} if experts > 1 and not grouped else {})


def _chunks(fields: _NemoFields) -> Iterator[str]:
    """Chunks of a stage, where there are more than one; stages hold the same number of layers."""
    chunks = fields.number("model.virtual_pipeline_model_parallel_size", 1) or 1
    stages, layers = fields.number("model.pipeline_model_parallel_size", 1) or 1, fields.number("model.num_layers")
    if layers and layers % stages:
        told = say("{layers} layers are not a multiple of {stages} stages", layers=layers, stages=stages)
        fields.trouble("model.num_layers", told, layers)
    elif chunks > 1:
        yield from as_tokens("num-virtual-stages-per-pipeline-rank", chunks)


def _recomputation(fields: _NemoFields) -> Iterator[str]:
    """Whole layers by units or the first ones of each chunk, or attention's core."""
    names = [f"model.activations_checkpoint_{part}" for part in ("granularity", "method", "num_layers")]
    granularity, method = fields.text(names[0]), fields.text(names[1])
    number = fields.number(names[2], least=0)
    if granularity is None:  # the others alone turn nothing on
        return
    yield from as_tokens("recompute-granularity", granularity)
    if granularity == "full":
        if not number and not _core(fields):
            number = 1  # NeMo's own layers take it for nothing, or 0 (transformer.py)
        yield from (*as_tokens("recompute-method", method), *as_tokens("recompute-num-layers", number))
    elif number is not None and _core(fields):
        fields.trouble(names[2], say("goes with granularity full in Megatron-Core"), number)


def _partly(fields: _NemoFields) -> Iterator[str]:
    """Why no plan holds layers whose recomputation differs by microbatch or stage, which NeMo's own layers alone do."""
    if fields.data.get("model.activations_checkpoint_granularity") is None or _core(fields):
        return
    for part in ("num_micro_batches_with_partial_activation_checkpoints", "activations_checkpoint_layers_per_pipeline"):
        if fields.data.get(f"model.{part}"):
            what = say("recomputation that differs by microbatch or stage")
            yield say("{name}: {what}, which no plan knows", name=f"model.{part}", what=what)


def _precision(fields: _NemoFields) -> str:
    """That of the trainer, which replaces the model's (megatron_base_model.py)."""
    name = "trainer.precision" if fields.has("trainer.precision") or not fields.has("model.precision") else ""
    return str(fields.spelt(name or "model.precision", _PRECISIONS, "bf16"))


def _optimizer(fields: _NemoFields) -> str:
    fields.spelt("model.optim.name", _OPTIMIZERS, "fused_adam")
    return fields.text("model.optim.name", "fused_adam") or "fused_adam"


def _narrow(fields: _NemoFields) -> bool:
    """Whether gradients are summed and sent in 16 bits; Apex takes the type of its states without another word."""
    optimizer = _optimizer(fields)
    default = "fp32"
    if optimizer == "distributed_fused_adam":
        default = fields.spelt("model.optim.dtype", _TYPES, "fp32")
    return optimizer in _SHARDED and fields.spelt("model.optim.grad_sync_dtype", _TYPES, default) == "bf16"


def _states(fields: _NemoFields) -> Iterator[str]:
    """Precision, optimizer, and what its states are. Apex's keeps of master weights what bf16 weights leave out of them
    (megatron_base_model.py, store_param_remainders); without O2 weights are fp32 and there are none."""
    precision, optimizer = _precision(fields), _optimizer(fields)
    yield f"--{precision}"
    if optimizer not in _SHARDED or fields.flag("model.optim.disable_distributed_parameters"):
        return
    yield "--use-distributed-optimizer"
    if not _halved(fields) or optimizer != "distributed_fused_adam" or precision != "bf16":
        return
    if fields.spelt("model.optim.dtype", _TYPES, "fp32") == "bf16":
        types = ("--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16")
        yield from ("--use-precision-aware-optimizer", *types, *(["--main-grads-dtype", "bf16"] * _narrow(fields)))
    elif not fields.flag("model.optim.store_params", fields.flag("model.fp8_params")):
        yield "--use-precision-aware-optimizer"


def _adapters(fields: _NemoFields) -> Iterator[str]:
    """LoRA, as MindSpeed-LLM's arguments have it."""
    if fields.spelt("model.peft.peft_scheme", {"none": False, "null": False, "lora": True}, "none"):
        fields.choice("model.peft.lora_tuning.variant", {"nemo": None}, "nemo")
        yield from as_tokens("lora-r", fields.number("model.peft.lora_tuning.adapter_dim", _RANK))
        where = "model.peft.lora_tuning.target_modules"
        named = fields.data[where] if fields.has(where) else ["attention_qkv"]
        named = named if isinstance(named, list) else [named]
        if unknown := [name for name in named if str(name) not in _ADAPTED]:
            fields.trouble(where, "is not planned for", unknown[0], ", ".join(_ADAPTED))
            return
        yield from as_tokens("lora-target-modules", [_ADAPTED[str(name)] for name in named])


def _halved(fields: _NemoFields) -> bool:
    """Whether weights are held in 16 bits (O2)."""
    return fields.flag("model.megatron_amp_O2")


def _framework(fields: _NemoFields) -> tuple[FrameworkGuess, tuple[str, ...]]:
    """The stack, by the type of gradients and by what is overlapped; and notes where the file has not what the stack
    counts on. Since 24.09 the launcher leaves cuDNN's attention on; its files have Megatron-Core's optimizer since then
    (three since 24.07), which tells where no field does."""
    optimizer, narrow = _optimizer(fields), _narrow(fields)
    apex = optimizer == "distributed_fused_adam"
    gradients = fields.flag("model.optim.overlap_grad_sync", apex) and optimizer in _SHARDED
    gathers = [fields.flag(f"model.optim.overlap_param_{name}") for name in ("sync", "gather")]
    if not narrow and not gradients:
        why = later("a configuration of NeMo, which overlaps no gradients")
        return FrameworkGuess("megatron-core-plain", None, why), tuple(_off(fields, "megatron-core-plain"))
    since = any(fields.has(name) for name in fields.known["later"].split()) or not apex
    if narrow:
        stack = "nemo" if since else "nemo-2024"
        why = later("a configuration of NeMo, with gradients in 16 bits")
    else:
        stack = "megatron-core-2024" if _overlapped(fields) else "megatron-core"
        why = later("a configuration of NeMo, with gradients in fp32")
    notes = list(_off(fields, stack))
    told = later("the stack {stack} overlaps {what}, the file does not: it is slower there")
    lacking = [
        what for what, there in ((later("gradients"), gradients), (later("parameters"), any(gathers))) if not there
    ]
    if stack == "nemo-2024":
        notes.append(
            say("NeMo from 24.09 on has faster attention on Hopper than its launcher had before: --stack nemo")
        )
    notes += [say(told, stack=stack, what=say(what)) for what in lacking]
    return FrameworkGuess(stack, None, why), tuple(notes)


def _off(fields: _NemoFields, stack: str) -> Iterator[str]:
    """Notes on what the stack has on and the file has not, and on weights in fp32."""
    told = later("the stack {stack} overlaps {what}, the file does not: it is slower there")
    split = (fields.number("model.tensor_model_parallel_size", 1) or 1) > 1
    if stack in ("nemo", "nemo-2024") and split and not _overlapped(fields):
        yield say(told, stack=stack, what=say("tensor parallelism's exchanges"))
    chunks = (fields.number("model.virtual_pipeline_model_parallel_size", 1) or 1) > 1
    if stack != "megatron-core-plain" and chunks and not fields.flag("model.overlap_p2p_comm"):
        yield say(told, stack=stack, what=say("transfers between stages"))
    if not _halved(fields):
        yield say(
            "model.megatron_amp_O2 is off: weights are in fp32 and cast in every pass; memory is predicted too low "
            "with a distributed optimizer, time too short"
        )


def _devices(fields: _NemoFields) -> TrainingDevices:
    """Nodes and devices of each; nodes are given on the command line where the file has none."""
    fields.choice("trainer.accelerator", {"gpu": None, "cuda": None, "auto": None}, "gpu")
    value = fields.data["trainer.devices"] if fields.has("trainer.devices") else None
    if isinstance(value, list):
        fields.data["trainer.devices"] = len(value)
    each = None if value in (-1, "-1", "auto") else fields.number("trainer.devices")
    nodes = fields.number("trainer.num_nodes")
    return TrainingDevices(each * nodes if each and nodes else None, each)


def _reasons(fields: _NemoFields, heading: str) -> Iterator[str]:
    """Why no plan says what fields do, or what the plan does not hold and which way predictions err."""
    weights = "model.cpu_offloading_weights"  # on by default, where anything is sent away
    fields.data[weights] = fields.flag("model.cpu_offloading") and fields.flag(weights, True)
    for name, what in table("nemo")[heading].items():
        if not fields.has(name) or fields.data[name] in (False, 0):
            continue
        if heading == "plan":
            yield say("{name}: {what}, which no plan knows", name=name, what=say(what))
        else:
            yield say("{names} is not in the plan: {what}", names=name, what=say(what))

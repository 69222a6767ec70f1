"""Guesses the framework that a script starts, from the names in its text and from arguments that only one has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.inputs.language import later, say

_MINDSPEED = (
    *("context-parallel-algo", "use-fused-rmsnorm", "use-fused-swiglu", "use-fused-rotary-pos-emb", "reuse-fp32-param"),
    *("swap-attention", "swap-optimizer", "quant-states", "schedules-method", "enable-recompute-layers-per-pp-rank"),
    *("ulysses-degree-in-cp", "moe-tp-extend-ep", "first-k-dense-replace", "n-shared-experts"),
    *("pipeline-num-transformer-layers", "num-layer-list", "noop-layers", "handler-name"),
    *("use-ascend-mc2", "use-ascend-coc", "auto-parallel"),
)
_ASCENDSPEED = ("release-fp32-grad", "optimized-pipeline", "foldx-mode", "fold-mode", "triangle-attn")
_OLD = ("DDP-impl",)
"""Arguments of Megatron up to 2.6, and so of AscendSpeed: on an Ascend script they tell."""
_LOONGFORGE = ("custom-pipeline-layers", "custom-virtual-pipeline-layers", "custom-pipeline-recompute-layers")

_GAUDI = ("habana", "pt_hpu")
"""What scripts for Intel's Gaudi have, whose Megatron-LM has some of MindSpeed's names."""


@dataclass(frozen=True)
class FrameworkGuess:
    """Names of the stack and of the launcher profile (None: any); the evidence for them, a message and its values."""

    stack: str
    launcher: str | None
    evidence: str
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def why(self) -> str:
        """The evidence in words."""
        return say(self.evidence, **self.values)


def guess_framework(arguments: Arguments, launch: tuple[str, ...], text: str, precision: str) -> FrameworkGuess:
    """The framework of a training command; `text` is the whole script, `launch` what starts the program."""
    given = arguments.given
    lowered = text.lower()
    telltale = next((f"--{name}" for name in _LOONGFORGE if name in given), None)
    if telltale or "loongforge" in lowered or "aiak" in lowered:
        return FrameworkGuess("megatron-core", "loongforge", telltale or later("its text names LoongForge or AIAK"))
    npu_words: tuple[str, ...] = ("npus_per_node", "ascend", "mindspeed", "torch_npu")
    of_gaudi = any(word in lowered for word in _GAUDI)
    npu_words += () if of_gaudi else ("hccl",)  # Gaudi's collectives have that name too
    npu_word = next((word for word in npu_words if word in lowered), None)
    own = (*_ASCENDSPEED, *_OLD) if npu_word else _ASCENDSPEED
    ascendspeed = next((f"--{name}" for name in own if name in given), None)
    telltale = next((f"--{name}" for name in _MINDSPEED if name in given), None)
    by_deepspeed = "deepspeed" in given or any(word.rsplit("/", 1)[-1] == "deepspeed" for word in launch)
    if by_deepspeed and not (ascendspeed or npu_word):  # forks on other chips have some of MindSpeed's names
        return FrameworkGuess("megatron-deepspeed", "deepspeed", later("DeepSpeed starts it, or --deepspeed"))
    gaudi = of_gaudi and not npu_word
    if not gaudi and (ascendspeed or telltale or npu_word):
        flag = ascendspeed or telltale
        seen = {"flag": flag, "word": npu_word, "precision": precision}
        if ascendspeed or precision == "fp16":
            why = "{flag}, {precision}" if flag else later("its text has {word!r}, {precision}")
            return FrameworkGuess("ascendspeed", "mindspeed-llm" if telltale else None, why, seen)
        return FrameworkGuess("mindspeed", "mindspeed-llm", flag or later("its text has {word!r}"), seen)
    if "flagscale" in lowered:
        return FrameworkGuess("megatron-core", "flagscale", later("its text names FlagScale"))
    if arguments.has("overlap-grad-reduce") and (narrow := _narrow_gradients(arguments)):
        why = later("Megatron's arguments, with {flag}")
        return FrameworkGuess("megatron-bridge", "megatron-lm", why, {"flag": narrow})
    if arguments.has("overlap-grad-reduce") or arguments.has("use-megatron-fsdp"):
        why = later("Megatron's arguments, with {flag}")
        return FrameworkGuess("megatron-core", "megatron-lm", why, {"flag": "--overlap-grad-reduce"})
    why = later("Megatron's arguments, without --overlap-grad-reduce")
    return FrameworkGuess("megatron-core-plain", "megatron-lm", why)


def _narrow_gradients(arguments: Arguments) -> str | None:
    """The argument that has gradients summed in 16 bits, but where the optimizer's moments say so too.

    Without --main-grads-dtype fp32 they are not summed in fp32 either (Megatron-LM d98e8a6, training/arguments.py).
    """
    if "grad-reduce-in-bf16" in arguments.given:
        return "--grad-reduce-in-bf16"
    narrow = arguments.given.get("main-grads-dtype") == ("bf16",) and arguments.has("use-precision-aware-optimizer")
    return "--main-grads-dtype bf16" if narrow and "exp-avg-dtype" not in arguments.given else None


def overlap_notes(arguments: Arguments, framework: FrameworkGuess) -> list[str]:
    """Where the guessed stack counts on what the script has not, or has none of the overlaps or masks that it has."""
    if framework.stack != "mindspeed":
        return []
    split = (arguments.number("tensor-model-parallel-size", 1) or 1) > 1
    fused = {"use-ascend-mc2", "use-mc2", "use-ascend-coc"} & arguments.given.keys()
    texts = []
    if split and not fused:
        texts.append(
            say("the stack mindspeed has MC2 on, the script neither that nor CoC: tensor parallelism is slower there")
        )
    exchanges = (("overlap-grad-reduce", later("gradients")), ("overlap-param-gather", later("parameters")))
    told = later("--{name}: the stack mindspeed overlaps no exchange of {what}: the script is faster there")
    texts += [say(told, name=name, what=say(what)) for name, what in exchanges if name in arguments.given]
    # MindSpeed-LLM c77308a1, features_manager/transformer/flash_attention; Megatron-LM's kernels see no such mask
    if "reset-attention-mask" in arguments.given:
        texts.append(
            say("--reset-attention-mask: in MindSpeed documents attend to themselves; attention is predicted too long")
        )
    # MindSpeed-LLM 0034694 of May 2025, tasks/posttrain/sft/sft_trainer.py; ModelLink f364fa2a, pretrain_gpt.py
    elif "reset-position-ids" in arguments.given:
        texts.append(
            say(
                "--reset-position-ids: in MindSpeed-LLM until 2025 documents attend to themselves; attention is "
                "predicted too long"
            )
        )
    return texts

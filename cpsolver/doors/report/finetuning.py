"""What reports say of fine-tuning: what is trained, how sequences share windows, and what waits for long ones."""

from __future__ import annotations

from collections.abc import Iterator

from cpsolver.cost.adapters import trained_in_all
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.evaluation.long_tail import long_tail_s
from cpsolver.inputs.language import say
from cpsolver.inputs.text import percent, seconds
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from models_zoo import total_parameters


def task_words(problem: Problem) -> str:
    """The adapters and the sequences of a training, in a clause each; empty where all is trained on whole sequences."""
    return "; ".join(filter(None, (_adapters(problem), _sequences(problem))))


def _adapters(problem: Problem) -> str:
    lora, trained = problem.lora, trained_in_all(problem)
    if lora is None or trained is None:
        return ""
    beside = ", ".join(name.removeprefix("linear_") for name in lora.targets)
    whole = total_parameters(problem.model) / 1e9
    base = say(", frozen layers in {quantized_base}", quantized_base=lora.quantized_base) if lora.quantized_base else ""
    return say(
        "LoRA of rank {rank} beside {beside}: {trained:,.1f} M trained, {whole:,.1f} B frozen{base}",
        rank=lora.rank,
        beside=beside,
        trained=trained / 1e6,
        whole=whole,
        base=base,
    )


def _sequences(problem: Problem) -> str:
    training = problem.spec.training
    if training.lengths is None:
        return ""
    lengths = [length.tokens for length in training.lengths]
    told = (
        say("{lengths:,} to {lengths2:,}", lengths=min(lengths), lengths2=max(lengths))
        if len(lengths) > 1
        else f"{lengths[0]:,}"
    )
    way = say("packed") if training.packs else say("padded")
    return say(
        "sequences of {told} tokens, {way}: {useful} padding",
        told=told,
        way=way,
        useful=percent(1 - problem.windows.useful),
    )


def long_tail_words(problem: Problem, strategy: Strategy, evaluation: Evaluation) -> Iterator[str]:
    """What packed windows that have more attention than others add to a step, which the prediction leaves out."""
    wait = long_tail_s(problem, strategy, evaluation)
    if wait is None or strategy.dp == 1:
        return
    least = say("at least ") if strategy.pp > 1 else ""
    share = percent(wait / evaluation.step_time_s)
    told = say(
        "Replicas wait for the one with the longest sequences: {least}{wait} a step in the mean ({share})",
        least=least,
        wait=seconds(wait),
        share=share,
    )
    yield say("{told}, which the step time leaves out.", told=told)


def finetuning_fields(problem: Problem, strategy: Strategy, evaluation: Evaluation) -> dict[str, float | None]:
    """Of a plan in JSON: parameters that are trained, the share of padding and the wait; only where asked for."""
    found: dict[str, float | None] = {}
    if problem.lora is not None:
        found["trained_parameters"] = trained_in_all(problem)
    if problem.spec.training.lengths is not None:
        found["padding_share"] = 1 - problem.windows.useful
        found["long_tail_s"] = long_tail_s(problem, strategy, evaluation)
    return found

"""Builders of small problems and strategies for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cpsolver.plans.strategy import Mesh, RecomputeKind, StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.stack import Constant, Constants
from cpsolver.spec.spec import parse_spec
from cpsolver.spec.training import Training
from hw_specs import Chip
from hw_specs.schema import HostLink
from models_zoo import Architecture
from tests.support.steady import HOST as HOST
from tests.support.steady import STEADY as STEADY

FRAMEWORK_GB = 3.2
"""A little more than what the stack takes of every device."""
IDEAL_STACK: dict[str, float] = {
    **STEADY,
    **dict.fromkeys((*HOST, "gradient_sum_bytes", "ring_step_us", "ring_border_us", "straggling", "masked_keys"), 0.0),
    **{name: 0.0 for name in STEADY if "_overlap" in name},
    **dict.fromkeys(
        ("attention_speed", "grouped_gemm_speed", "score_traffic", "elementwise_traffic", "norm_traffic"), 1.0
    ),
}
"""Nothing is hidden, lost or done by the host."""
IDEAL: dict[str, float] = {
    **dict.fromkeys(("gemm_bf16", "gemm_fp8", "memory", "network"), 1.0),
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"), 1.0),
    **dict.fromkeys(("attention_forward", "attention_backward"), 0.5),
    "collective_half_payload_mib": 1e-9,
    "collective_latency_us": 1e-9,
    "network_latency_us": 1e-9,
    "kernel_latency_us": 1e-9,
}
"""Every efficiency 1 (attention 1/2), nothing costs latency: the formulas are left."""


def model_spec(**changes: Any) -> dict[str, Any]:
    """A small model of the usual shape."""
    return {"layers": 4, "hidden": 1024, "ffn": 2816, "heads": 8, "vocab": 4000, **changes}


def chip_spec(
    tflops: float = 100, gb: float = 40, gb_s: float = 1000, up: float = 100, out: float = 100, **more: Any
) -> dict[str, Any]:
    """A chip's fields; `up` in GB/s and `out` in Gb/s are its links inside a node and between nodes."""
    return {
        "peak_tflops": {"bf16": tflops, "fp32": tflops},
        "memory": {"capacity_gb": gb, "bandwidth_gb_s": gb_s},
        "scale_up": {"bandwidth_gb_s": up, **more.pop("scale_up", {})},
        "scale_out": {"bandwidth_gbit_s": out},
        **more,
    }


def spec_of(
    chips: Mapping[str, Any] | None = None,
    model: Any = None,
    gpus: int = 4,
    node: int = 4,
    batch: int = 8,
    sequence: int = 1024,
    training: Mapping[str, Any] | None = None,
    margin: float | None = 0.04,
    launcher: str | None = None,
    stack: str | None = None,
    network: Any = None,
    **search: Any,
) -> dict[str, Any]:
    """A whole spec as plain values; `chips` holds chip_spec values, or {"max": .., "spec": ..}."""
    given = {"x": chip_spec()} if chips is None else chips
    requests = {k: v if not isinstance(v, Mapping) or "spec" in v else {"spec": dict(v)} for k, v in given.items()}
    return {
        "model": model_spec() if model is None else model,
        "cluster": {
            "num_gpus": gpus,
            "gpus_per_node": node,
            "chips": requests,
            "memory_margin": margin,
            "network": network,
        },
        "training": {"global_batch_size": batch, "sequence_length": sequence, **(training or {})},
        "search": search,
        "launcher": launcher,
        **({} if stack is None else {"stack": stack}),
    }


def problem_of(*args: Any, **given: Any) -> Problem:
    """`spec_of`, resolved, with the constants of STEADY."""
    return with_stack(resolve(parse_spec(spec_of(*args, **given))), **STEADY)


def with_stack(problem: Problem, **values: float) -> Problem:
    """The problem with those constants of its software stack replaced."""
    assert set(values) <= set(Constants.model_fields)
    new = {name: Constant(value=value, source="a test", confidence="assumed") for name, value in values.items()}
    constants = problem.stack.constants.model_copy(update=new)
    return replace(problem, stack=problem.stack.model_copy(update={"constants": constants}))


def with_host(problem: Problem, **switches: Any) -> Problem:
    """The problem with those switches of its training, on chips that reach 10 GB/s to their hosts."""
    link = HostLink(pcie_generation=3, bandwidth_gb_s=10)
    supplies = tuple(replace(s, chip=s.chip.model_copy(update={"host_link": link})) for s in problem.supplies)
    training = Training.model_validate({**problem.spec.training.model_dump(), **switches})
    spec = problem.spec.model_copy(update={"training": training})
    return replace(problem, spec=spec, supplies=supplies)


def ideal(
    efficiency: Mapping[str, float] | None = None,
    model: Mapping[str, Any] | Architecture | None = None,
    stack: Mapping[str, float] | None = None,
    **given: Any,
) -> tuple[Problem, Chip]:
    """A problem with one chip of 100 TFLOP/s (200 in fp8), 1 TB/s memory, 100 GB/s inside nodes of 4 and 100 Gb/s
    outside; the efficiencies of IDEAL and the constants of IDEAL_STACK but for those given."""
    more = {name: given.pop(name) for name in ("compute_units", "scale_up") if name in given}
    spec = chip_spec(efficiency={**IDEAL, **(efficiency or {})}, **more)
    spec["peak_tflops"]["fp8"] = 200
    plain = model_spec() if isinstance(model, Architecture) else model
    problem = with_stack(problem_of({"x": spec}, plain, **given), **{**IDEAL_STACK, **(stack or {})})
    if isinstance(model, Architecture):
        problem = replace(problem, model=model)  # one that the search may not support
    return problem, problem.supplies[0].chip


def with_meshes(strategy: Strategy, **meshes: Mesh) -> Strategy:
    """The strategy with the stages of some chip types cut as these meshes."""
    groups = (replace(group, mesh=meshes.get(group.chip, group.mesh)) for group in strategy.groups)
    return replace(strategy, groups=tuple(groups)).canonical()


def strategy_of(
    groups: str = "x:4",
    tp: int = 1,
    dp: int = 4,
    mbs: int = 1,
    vpp: int = 1,
    flags: str = "fz",
    recompute: RecomputeKind = "none",
    amount: int = 0,
    **more: Any,
) -> Strategy:
    """A strategy from text: groups "a:3,2 b:1" (layers by stage), flags s(equence), z(ero), f(lash); `more`: cp, ..."""
    parsed = []
    for text in groups.split():
        chip, counts = text.split(":")
        layers = tuple(map(int, counts.split(",")))
        parsed.append(StageGroup(chip, layers, recompute, (amount,) * len(layers)))
    pp = sum(group.num_stages for group in parsed)
    return Strategy(tp, pp, dp, mbs, vpp, "s" in flags, "z" in flags, "f" in flags, tuple(parsed), **more)

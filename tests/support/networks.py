"""Problems with a network put around their chips, and the figures of published scaling runs on one."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

import cpsolver
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.intervals import interval
from cpsolver.evidence.runs.plan import placed_plan
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.problem.network import ClusterNetwork
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import load_calibration
from cpsolver.search.result import Plan
from cpsolver.search.search import search
from cpsolver.spec.network import Network

SCALING = "DGX Cloud Benchmarking v25.02 expected performance"
"""NVIDIA's rows of the same models on 64 to 1,024 H100s."""


def on_network(problem: Problem, network: Any) -> Problem:
    """The problem with that network around its chips; nothing is checked."""
    given = {"preset": network} if isinstance(network, str) else network
    spec = problem.spec
    cluster = spec.cluster.model_copy(update={"network": Network.model_validate(given)})
    found = ClusterNetwork.of(cluster)
    assert found is not None
    supplies = tuple(replace(supply, chip=found.chip(supply.chip)) for supply in problem.supplies)
    return replace(problem, spec=spec.model_copy(update={"cluster": cluster}), supplies=supplies)


def scaling_runs() -> list[MeasuredRun]:
    """The complete ones of 64 to 1,024 devices."""
    runs = read_runs(PUBLISHED).runs
    return [run for run in runs if run.source == SCALING and run.complete and 64 <= (run.num_gpus or 0) <= 1024]


def predicted(run: MeasuredRun, network: Any = None) -> tuple[float, bool]:
    """Seconds of a step, and whether the measured time lies inside the 80 % interval."""
    case = placed_plan(run)
    problem = case.problem.with_constants(load_calibration())
    problem = problem if network is None else on_network(problem, network)
    seconds = evaluate(problem, case.strategy).step_time_s
    low, high = interval(problem, case.strategy, seconds)
    return seconds, low <= (run.step_time_s or 0.0) <= high


SWEEP: dict[str, Any] = {
    **{f"{rate} Gbit/s": {"gbit_s": rate} for rate in (100, 200, 400, 800)},
    **{
        f"200 Gbit/s, 1:{times} between racks": {
            "gbit_s": 200,
            "levels": [{"name": "rack", "nodes": 4}, {"name": "cluster", "oversubscription": times}],
        }
        for times in (1, 2, 4)
    },
}
"""Networks around 256 A800, from 100 to 800 Gbit/s a device, and racks of 32 with ever narrower uplinks."""


def swept(network: Any) -> Plan:
    """The best plan of Llama 2 70B on 256 A800 around that network."""
    problem = cpsolver.make_problem(
        model="llama2-70b",
        num_gpus=256,
        chips="a800",
        network=network,
        global_batch_size=512,
        sequence_length=4096,
        top=1,
    )
    return search(problem).plans[0]


def sweep_line(name: str, plan: Plan) -> str:
    """A line of the table in docs/network.md."""
    s, parts = plan.strategy, plan.evaluation.breakdown_s
    between = sum(parts[part] for part in ("pipeline_p2p", "data_parallel"))
    degrees = f"{s.tp} · {s.cp} · {s.pp} · {s.dp}"
    return f"| {name} | {plan.evaluation.step_time_s:.2f} | {degrees} | {s.vpp} | {between:.2f} |"


def scaling_line(name: str, network: Any) -> str:
    """A line of the table of published runs there."""
    found = [(run, *predicted(run, network)) for run in scaling_runs()]
    inside = sum(within for _, _, within in found)
    error = fmean(abs(seconds / (run.step_time_s or 1.0) - 1) for run, seconds, _ in found)
    return f"| {name} | {inside} of {len(found)} | {100 * error:.1f} % |"

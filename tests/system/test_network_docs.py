"""docs/network.md: its specs are specs, and its tables are what the program says."""

from __future__ import annotations

import re

import pytest

from cpsolver.inputs.document import parse_yaml
from cpsolver.problem.load import make_problem
from hw_specs import NetworkFigures, NetworkLevel
from tests.support.checkout import ROOT
from tests.support.networks import SWEEP, scaling_line, sweep_line, swept
from tests.support.selection import full

PAGE = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
SUPERPOD = [{"name": "scalable unit", "devices": 256}, {"name": "fabric", "oversubscription": 4}]
ROWS = {
    "each chip's own (the default)": None,
    "`superpod-h100`": "superpod-h100",
    "`superpod-h100`, 1:4 between its units": {"preset": "superpod-h100", "levels": SUPERPOD},
}


def table(name: str) -> list[str]:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, flags=re.DOTALL)
    assert found is not None
    return found[1].splitlines()[2:]


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL))
def test_every_piece_of_a_spec_is_one(block: str) -> None:
    cluster = {"num_gpus": 256, "chips": "h100", **parse_yaml(block).data}
    training = {"global_batch_size": 256, "sequence_length": 4096}
    assert make_problem({"model": "llama2-7b", "cluster": cluster, "training": training}, {}, {}).num_gpus == 256


def test_every_field_is_told() -> None:
    for name in (*NetworkFigures.model_fields, *NetworkLevel.model_fields, "preset", "links", "total_gbit_s"):
        assert f"`{name}`" in PAGE or f"`{name}:" in PAGE, name


@pytest.mark.full
def test_the_published_scaling_rows_are_as_told() -> None:
    assert table("scaling") == [scaling_line(name, network) for name, network in ROWS.items()]


@pytest.mark.parametrize("way", [full("all"), "ends"])
def test_a_slower_network_never_helps_and_shifts_the_plan(way: str) -> None:
    """From 100 to 800 Gbit/s, and from 1:1 to 1:4 between racks, where stages give way to tensor parallelism."""
    lines, names = table("sweep"), list(SWEEP)
    chosen = names if way == "all" else [names[4], names[6]]
    plans = {name: swept(SWEEP[name]) for name in chosen}
    assert [sweep_line(name, plan) for name, plan in plans.items()] == [lines[names.index(name)] for name in chosen]
    faster = [plans[name].evaluation.step_time_s for name in chosen if "racks" not in name]
    narrower = [plans[name].evaluation.step_time_s for name in chosen if "racks" in name]
    assert faster == sorted(faster, reverse=True)
    assert narrower == sorted(narrower)
    slow, fast = (plans[name].strategy for name in (names[6], names[4]))
    assert (slow.pp * slow.cp, -slow.tp) < (fast.pp * fast.cp, -fast.tp)

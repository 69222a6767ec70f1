"""What chunks of layers of several kinds keep: a bound from above, near what they do keep."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.cost.kinds import kind_of_layers, layer_kinds
from cpsolver.cost.shard import Candidates
from cpsolver.cost.stored import Stored, runs_beyond_mean, stored_of_kinds
from cpsolver.cost.tables import memory_table
from models_zoo import Architecture, architecture_names, load_architecture
from tests.support.problems import ideal, strategy_of

NO = np.zeros(1, dtype=np.bool_)
SEVERAL = [name for name in architecture_names() if len(layer_kinds(load_architecture(name))) > 1]


def longest_runs(model: Architecture, by_kind: np.ndarray) -> list[float]:
    """The most that so many layers one after another keep, by their number, all of them tried."""
    before = np.concatenate([[0.0], by_kind[np.array(kind_of_layers(model))].cumsum()])
    return [float((before[n:] - before[: len(before) - n]).max()) for n in range(len(before))]


@pytest.mark.parametrize("name", SEVERAL)
def test_no_run_of_layers_keeps_more(name: str) -> None:
    """With what the model keeps, and with numbers drawn at random: one run of layers is as long as said."""
    model, rng = load_architecture(name), np.random.default_rng(len(name))
    row = Candidates.one(strategy_of(f"x:{model.layers}"), 8)
    own = memory_table(ideal(model=model)[0], row)
    for by_kind in (own.full - own.short[:, 0], *rng.uniform(0, 1, (5, len(layer_kinds(model))))):
        found = stored_of_kinds(model, by_kind[:, None], NO)
        said = np.array([float(found.of(n)[0]) for n in range(model.layers + 1)])
        true = np.array(longest_runs(model, by_kind))
        assert (said >= true - 1e-9 * true.max()).all()
        beyond = (true - np.arange(len(true)) * by_kind[np.array(kind_of_layers(model))].mean()).max()
        assert found.beyond[0] == pytest.approx(beyond, abs=1e-9 * true.max())
        for longest in (1, 2, model.layers // 4, model.layers):
            least = float(found.each_at_least(longest)[0])
            assert (least * np.arange(longest + 1) <= said[: longest + 1] + 1e-9 * true.max()).all()


def test_kinds_that_take_turns_count_as_the_mean_and_first_ones_as_the_heaviest() -> None:
    """Nemotron 3 Super's blocks keep 0.61 of what the heaviest would; of DeepSeek-V3 experts alone count."""
    for name, share in (("nemotron3-super-120b-a12b", 0.62), ("qwen3.5-35b-a3b", 0.93), ("deepseek-v3-671b", 1.0)):
        model = load_architecture(name)
        row = Candidates.one(strategy_of(f"x:{model.layers}", ep=8, dp=8), 8)
        kept = memory_table(ideal(model=model)[0], row).stored(((),), np.array([0]))
        assert kept.of(model.layers)[0, 0] / (model.layers * kept.most[0, 0]) == pytest.approx(share, abs=0.015)


def test_layers_counted_one_by_one_all_count_as_the_heaviest() -> None:
    model = load_architecture("nemotron3-nano-30b-a3b")
    by_kind = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    found = stored_of_kinds(model, by_kind, np.array([False, True]))
    assert found.of(52.0)[0] < found.of(52.0)[1] == 156.0


def test_few_runs_are_looked_at() -> None:
    """Of two kinds those with most and with fewest of one, of three the corners of all."""
    assert [len(runs_beyond_mean(load_architecture(name))) for name in ("deepseek-v3-671b", "qwen3.5-27b")] == [2, 2]
    assert len(runs_beyond_mean(load_architecture("kimi-k3-2.8t"))) < 20


def test_equal_layers() -> None:
    assert Stored.alike(np.array([3.0])).of(5)[0] == 15.0
    assert Stored.alike(np.array([3.0])).each_at_least(5)[0] == 3.0

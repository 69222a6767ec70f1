"""Layers of several kinds: which there are, where they stand, and what a stage of them takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.cost import memory
from cpsolver.cost.kinds import (
    LayerKind,
    counts_before,
    examples,
    kind_of_layers,
    kind_shares,
    layer_kinds,
    module_counts,
    of_module,
)
from cpsolver.cost.model_flops import model_flops_per_step
from cpsolver.cost.shard import Candidates, Shard
from cpsolver.cost.tables import memory_table, time_table
from cpsolver.evaluation.evaluate import evaluate, stage_kinds, stage_memory, stage_parameters
from cpsolver.problem.problem import Problem
from models_zoo import Architecture, load_architecture
from models_zoo.params import embedding_parameters, head_parameters, layer_parameters, total_parameters
from tests.support.problems import ideal, model_spec, strategy_of

FEW = {"experts": 8, "top_k": 2, "expert_ffn": 512}
DENSE, EXPERTS = LayerKind(False, True), LayerKind(True, True)


def small(**changes: Any) -> Architecture:
    return Architecture.model_validate({"name": "small", **model_spec(**changes)})


def mtp_parameters(model: Architecture) -> int:
    """Parameters of the modules for multi-token prediction, which no total has; 0 where the model has none.

    Each has norms of the token's embedding and of the hidden state, a projection of both (2h to h, no bias), a layer
    like the model's last, and a final norm (MultiTokenPredictionLayer of Megatron core). It shares the embedding and
    the head with the model.
    """
    norm = model.hidden * (2 if model.norm_bias else 1)
    layer = layer_parameters(model, model.layers - 1).total
    return model.mtp_layers * (3 * norm + 2 * model.hidden * model.hidden + layer)


def mixed(**changes: Any) -> Problem:
    """Eight layers, the first two dense, the others of experts."""
    return ideal(model=small(layers=8, moe={**FEW, "first_dense": 2}, **changes))[0]


def test_the_count_of_multi_token_prediction_is_the_published_one() -> None:
    """The weights' own documentation: 11.5B unique parameters, beside the shared embedding and head of 0.9B each."""
    model = load_architecture("deepseek-v3-671b")
    assert mtp_parameters(model) == pytest.approx(11.5e9, rel=0.01)
    shared = embedding_parameters(model) + head_parameters(model)
    assert mtp_parameters(model) + shared == pytest.approx(14e9, rel=0.05)
    assert total_parameters(model) == pytest.approx(671.026e9, abs=1e6)


def test_kinds_come_by_how_common_they_are() -> None:
    model = mixed().model
    assert layer_kinds(model) == (EXPERTS, DENSE)
    assert kind_of_layers(model) == (1, 1, 0, 0, 0, 0, 0, 0)
    assert kind_shares(model) == (0.75, 0.25)
    assert examples(model) == (2, 0)
    assert layer_kinds(small()) == (DENSE,)


def test_windows_and_experts_make_four_kinds() -> None:
    window = {"sliding_window": 256, "full_every": 2}
    kinds = layer_kinds(small(attention=window, moe={**FEW, "first_dense": 2}))
    assert set(kinds) == {LayerKind(experts, full) for experts in (False, True) for full in (False, True)}


def test_layers_of_a_stages_chunks_are_counted_by_kind() -> None:
    """In two chunks of four layers the second has experts only."""
    assert counts_before(mixed().model, 1).tolist() == [[0, 0, 0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 2, 2, 2, 2, 2, 2]]
    assert counts_before(mixed().model, 2).tolist() == [[0, 1, 2, 4, 6], [0, 1, 2, 2, 2]]


@pytest.mark.parametrize(
    ("text", "vpp", "counts"),
    [
        ("x:1,7", 1, [[0, 6], [1, 1]]),
        ("x:2,6", 2, [[1, 5], [1, 1]]),
        ("x:3,5", 2, [[2, 4], [1, 1]]),  # embedding and head stand in the place of a layer
        ("x:4,4", 3, [[3, 3], [1, 1]]),  # chunks of unequal length: the mean's share
    ],
)
def test_a_stage_has_the_kinds_of_its_own_layers(text: str, vpp: int, counts: list[list[float]]) -> None:
    assert stage_kinds(mixed(), strategy_of(text, dp=2, vpp=vpp)).tolist() == counts


def test_a_stages_time_is_that_of_its_own_layers() -> None:
    """Where dense layers and layers with experts stand on stages of their own, and their communication too."""
    problem = mixed()
    routed, dense = (ideal(model=small(layers=8, **given))[0] for given in ({"moe": FEW}, {}))
    plan = strategy_of("x:2,4,2", dp=1, ep=1, tp=4, etp=4, flags="f")
    apart = evaluate(problem, plan).stages
    for index, alone in ((0, dense), (1, routed), (2, routed)):
        expected = evaluate(alone, plan).stages[index]
        assert apart[index].compute_s == pytest.approx(expected.compute_s)
        assert apart[index].tensor_parallel_s == pytest.approx(expected.tensor_parallel_s)
        assert apart[index].memory.optimizer == pytest.approx(expected.memory.optimizer)
        assert apart[index].memory.weights == pytest.approx(expected.memory.weights)


def test_columns_of_kinds_weigh_nothing_over_all_layers() -> None:
    problem = mixed()
    rows = Candidates.one(strategy_of("x:4,4", dp=2, ep=2), problem.batch)
    times, space = time_table(problem, problem.supplies[0], rows), memory_table(problem, rows)
    for columns in (times.kind_layer, times.kind_layer_tp, space.kind_states):
        assert columns.shape == (2, 1)
        assert np.array(kind_shares(problem.model)) @ columns == pytest.approx(0, abs=1e-6)
    assert space.kind_states[0] > 0 > space.kind_states[1]  # eight experts are more than one wide block
    one = memory_table(ideal()[0], rows)
    assert one.kind_states.tolist() == [[0.0]]


def test_activations_are_of_the_kind_that_keeps_most() -> None:
    problem = mixed()
    rows = Candidates.one(strategy_of("x:4,4", dp=2), problem.batch)
    kinds = [memory.layer_bytes(problem, Shard.of(1, 1, False, True), kind) for kind in (DENSE, EXPERTS)]
    found = memory_table(problem, rows)
    for name in ("full", "checkpoint", "buffer"):
        most = np.max([getattr(kind, name) for kind in kinds], axis=0)
        assert getattr(found, name).tolist() == most.tolist()


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite", "mixtral-8x7b", "gemma3-27b", "llama2-70b"])
def test_parameters_of_all_stages_are_the_models_and_its_modules(name: str) -> None:
    """On 2 stages of one device each: beside the padding of the vocabulary, and a copy of the table where it is tied
    or where modules of multi-token prediction look their tokens up."""
    model = load_architecture(name)
    problem, _ = ideal(model=model)
    near = model.layers // 2
    held = stage_parameters(problem, strategy_of(f"x:{near},{model.layers - near}", dp=1))
    padded = -(-model.vocab // 128) * 128
    tables = 2 + (model.mtp_layers > 0 and not model.tied_embeddings)
    words = padded * tables - model.vocab * (1 if model.tied_embeddings else 2)
    assert sum(held) == pytest.approx(total_parameters(model) + mtp_parameters(model) + words * model.hidden, abs=1)


def test_what_every_rank_holds_whole_and_what_it_holds_in_part() -> None:
    """DeepSeek-V3 on tp 4, etp 2, ep 8: a first stage of its dense layers, a last one of two layers with experts."""
    model = load_architecture("deepseek-v3")
    problem, _ = ideal(model=model)
    stages = stage_parameters(problem, strategy_of("x:3,56,2", tp=4, dp=4, ep=8, etp=2, flags="fsz"))
    dense, routed = layer_parameters(model, 0), layer_parameters(model, 60)
    down = 7168 * (1536 + 512 + 64)
    whole = down + dense.norms + dense.attention_norms
    attention = (dense.attention_qkv + dense.attention_out - down) / 4 + whole
    table = 129536 * 7168 / 4  # padded to 128 * 4
    assert stages[0] == pytest.approx(3 * (attention + dense.mlp / 4) + table, abs=1)
    with_experts = attention + routed.router + routed.shared_experts / 4 + routed.experts / 16
    assert stages[1] == pytest.approx(56 * with_experts, abs=1)
    module = with_experts + 2 * 7168**2 / 4 + 3 * 7168
    assert stages[2] == pytest.approx(2 * with_experts + module + 2 * table + 7168, abs=1)


@pytest.mark.parametrize(("text", "vpp", "held"), [("x:2,2", 1, [0, 2]), ("x:1,3", 1, [0, 2]), ("x:2,2", 2, [1, 1])])
def test_a_stage_holds_the_experts_of_its_own_layers(text: str, vpp: int, held: list[int]) -> None:
    """Of four layers the last two have experts."""
    problem, _ = ideal(model=small(moe={**FEW, "first_dense": 2}))
    one = 8 * 3 * 1024 * 512
    dense, router = 4 * 1024**2 + 2 * 1024 + 3 * 1024 * 2816, 4 * 1024**2 + 2 * 1024 + 8 * 1024
    table_of = 4096 * 1024
    stages = stage_memory(problem, strategy_of(text, dp=2, vpp=vpp))
    counted = stage_parameters(problem, strategy_of(text, dp=2, vpp=vpp))
    layers, ends = strategy_of(text).layers, (table_of, table_of + 1024)
    for stage, count, layer, end, found in zip(stages, held, layers, ends, counted, strict=True):
        parameters = count * (one + router) + (layer - count) * dense + end
        assert found == pytest.approx(parameters)
        assert stage.weights == pytest.approx(2 * parameters)


def test_an_expert_is_shared_by_its_own_tensor_parallel_ranks() -> None:
    """Two of them for each expert, whatever tp: 4 * 2 devices hold it in parts, or 4 * 1 whole."""
    problem, _ = ideal(model=small(moe=FEW), gpus=8)
    whole, half = (
        memory.stage_parameters(problem, Candidates.one(strategy_of(tp=4, dp=2, ep=4, etp=etp), 8)) for etp in (1, 2)
    )
    assert whole.experts == 8 / 4 * 3 * 1024 * 512
    assert half.experts == whole.experts / 2
    assert half.layer == whole.layer


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize(("etp", "received"), [(1, 1 / 4), (2, 2 / 4), (4, 1)])
def test_an_expert_keeps_the_tokens_that_its_ranks_have_gathered(etp: int, received: float, kept: int) -> None:
    """Beside the results of a device's own quarter of the tokens, where probabilities are applied to these (before
    Megatron-Core 0.13), and inside the experts the same for any etp."""
    problem, _ = ideal(model=small(moe=FEW), stack={"kept_expert_outputs": kept})
    found = memory._feed_forward_elements(problem, Shard.of(4, 1, True, True, etp=etp), EXPERTS)[1]
    assert found == 2 * 1024 * (received + kept / 4) + 3 * 2 * 512 / 4


def test_the_most_loaded_experts_keep_more() -> None:
    even, uneven = (ideal(model=small(moe=FEW), training={"expert_imbalance": load})[0] for load in (1.0, 1.5))
    kept = [memory._feed_forward_elements(each, Shard.of(1, 1, False, True), EXPERTS)[1] for each in (even, uneven)]
    assert kept[1] - kept[0] == 0.5 * 2 * (1024 + 3 * 512)


def test_a_module_of_multi_token_prediction_keeps_a_layer_and_logits() -> None:
    plain, more = (ideal(model=small(mtp_layers=count))[0] for count in (0, 2))
    plan = strategy_of("x:2,2", dp=2)
    before, after = (stage_memory(each, plan) for each in (plain, more))
    layer = memory_table(plain, Candidates.one(plan, 8)).full[0]
    logits = memory.logits_bytes(plain, Candidates.one(plan, 8))[0]
    assert after[0] == before[0]
    kept = 2 * (layer + 5 * 2 * 1024 * 1024 + logits)
    assert after[1].buffers - before[1].buffers == pytest.approx(kept)
    assert stage_parameters(more, plan)[1] - stage_parameters(plain, plan)[1] == pytest.approx(
        mtp_parameters(more.model) + 4096 * 1024
    )


def test_of_logits_of_a_loss_that_waits_softmax_alone_is_kept() -> None:
    """The head's: 16-bit logits (2) and their fp32 copy (4); of a module's that copy alone."""
    stack = {"logits_bytes": 6, "waiting_logits_bytes": 4}
    small_, rows = small(mtp_layers=1), Candidates.one(strategy_of("x:2,2", dp=2), 8)
    problem, _ = ideal(model=small_, stack=stack)
    logits = 1024 * 4096
    assert memory.logits_bytes(problem, rows)[0] == 6 * logits
    kept = memory.module_bytes(problem, rows, np.zeros(1))[0]
    assert kept == 5 * 2 * 1024 * 1024 + 4 * logits


MAMBA = {"heads": 8, "head_dim": 64, "groups": 4, "state": 64, "conv": 4}


def test_a_module_of_multi_token_prediction_has_the_layers_of_its_pattern() -> None:
    """Kinds are the most common first: here -, M, *. Without a pattern it is one layer like the model's last."""
    hybrid = small(layer_pattern="M-*-", mamba=MAMBA, mtp_layers=2, mtp_pattern="*-M-")
    kinds = layer_kinds(hybrid)
    assert dict(zip((kind.mixer for kind in kinds), module_counts(hybrid), strict=True)) == {
        "none": 2,
        "mamba": 1,
        "attention": 1,
    }
    assert of_module(hybrid, np.array([[1.0], [10.0], [100.0]])) == pytest.approx([112.0])
    assert module_counts(small(mtp_layers=1)) == (1,)


def test_modules_that_are_run_again_have_the_weights_of_one() -> None:
    """They compute as often, and keep as many activations."""
    rows = Candidates.one(strategy_of("x:2,2", dp=2), 8)
    modules = {"layer_pattern": "M-*-", "mamba": MAMBA, "mtp_layers": 2, "mtp_pattern": "*-"}
    own, again, without = (
        ideal(model=small(**modules | changes))[0] for changes in ({}, {"mtp_repeated": True}, {"mtp_layers": 0})
    )
    model, plain = own.model, memory.stage_parameters(without, rows)
    attention, block = (layer_parameters(model, index).total for index in (2, 3))
    module = attention + block + 2 * model.hidden**2 + 3 * model.hidden
    for problem, count in ((own, 2), (again, 1)):
        more = memory.stage_parameters(problem, rows).last - plain.last
        assert more == pytest.approx(count * module + plain.first)
    assert model_flops_per_step(own) == model_flops_per_step(again)
    assert memory_table(own, rows).last_buffer == memory_table(again, rows).last_buffer
    chips = [time_table(problem, problem.supplies[0], rows) for problem in (own, again)]
    assert chips[0].head == chips[1].head
    assert chips[0].update_last > chips[1].update_last

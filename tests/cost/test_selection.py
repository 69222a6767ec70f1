"""Attention over selected and compressed keys, heads of another width, residual streams: sizes by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.cost import comm, gemms, memory
from cpsolver.cost.compute import layer_operators, layer_seconds
from cpsolver.cost.context import selection_seconds
from cpsolver.cost.kinds import LayerKind, kind_of_layers, layer_kinds, model_of, problem_of
from cpsolver.cost.recurrence import mixer_gemms
from cpsolver.cost.selection import (
    attended_share,
    computed_share,
    saved_elements,
    scored_keys,
    visible_keys,
    visible_share,
)
from cpsolver.cost.shard import Shard
from cpsolver.problem.problem import Problem
from models_zoo import Architecture, layer_parameters, load_architecture
from models_zoo.params import compressor_widths, final_streams_parameters
from tests.support.problems import ideal, model_spec

ONE = Shard.of(1, 1, False, True)
LATENT = {"kind": "mla", "q_lora": 128, "kv_lora": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64}
INDEXER = {"heads": 4, "dim": 64, "topk": 256}


def of(**attention: Any) -> Problem:
    return ideal(model=model_spec(attention=attention))[0]


def v4(**more: Any) -> Architecture:
    return load_architecture("deepseek-v4-flash-284b").model_copy(update=more)


def kinds_by_compression(model: Architecture) -> dict[int, LayerKind]:
    return {kind.compression: kind for kind in layer_kinds(model)}


def test_selected_keys_are_what_attention_multiplies() -> None:
    """Of 1,024 keys 256: the first 256 queries see fewer; an indexer scores all that are not in the future."""
    problem = of(**LATENT, indexer=INDEXER)
    (kind,) = layer_kinds(problem.model)
    exact = sum(min(place, 256) for place in range(1, 1025)) / 1024
    assert visible_keys(problem.model, kind, 1024, 0.5) == pytest.approx(exact, rel=5e-3)
    assert scored_keys(kind, 1024, 0.5) == 512
    short = visible_keys(problem.model, kind, 128, 0.5)
    assert short == 64


def test_a_flash_kernel_takes_time_for_keys_behind_the_mask() -> None:
    """1,024 tokens attend to 512 keys in the mean and take time for 100 more, in a window of 256 too; never for more
    than there are. What an indexer chose has no mask. FLOP as MFU counts them stay what they were."""
    masked = {"masked_keys": 100.0}
    full, plain = (ideal(stack=stack)[0] for stack in (masked, {}))
    (kind,) = layer_kinds(full.model)
    assert attended_share(full, kind) == attended_share(plain, kind) == computed_share(plain, kind) == 0.5
    assert computed_share(full, kind) == pytest.approx((512 + 100) / 1024)
    core, less = (attention_seconds(problem) for problem in (full, plain))
    assert core == pytest.approx(less * 612 / 512)
    window = model_spec(attention={"sliding_window": 256})
    seen = 256 * (1 - 256 / 2048)
    assert computed_share(ideal(model=window, stack=masked)[0], kind_of(window)) == pytest.approx((seen + 100) / 1024)
    assert computed_share(ideal(stack={"masked_keys": 600.0})[0], kind) == 1.0
    chosen = ideal(model=model_spec(attention={**LATENT, "indexer": INDEXER}), stack=masked)[0]
    assert computed_share(chosen, layer_kinds(chosen.model)[0]) == attended_share(chosen, layer_kinds(chosen.model)[0])
    packed = {"lengths": [{"tokens": 512, "share": 1}, {"tokens": 128, "share": 4}]}
    several = ideal(training=packed, stack=masked)[0]
    assert computed_share(several, kind) == pytest.approx(0.25 * (256 + 100) / 512 + 4 / 64)


def kind_of(model: dict[str, Any]) -> LayerKind:
    (kind,) = layer_kinds(ideal(model=model)[0].model)
    return kind


def attention_seconds(problem: Problem) -> float:
    (kind,) = layer_kinds(problem.model)
    parts = layer_operators(problem, problem.supplies[0].chip, ONE, kind)
    return float(sum(np.sum(part.passes) for part in parts if part.name == "attention"))


def test_compressed_keys_come_beside_a_window() -> None:
    """DeepSeek-V4-Flash at 4,096 tokens: a window of 128; of 1,024 keys of four tokens 512, or 32 of 128 tokens."""
    model = v4()
    kinds, window = kinds_by_compression(model), 128 * (1 - 128 / (2 * 4096))
    near, sparse, heavy = (visible_keys(model, kinds[ratio], 4096, 0.5) for ratio in (0, 4, 128))
    assert near == pytest.approx(window)
    assert heavy == pytest.approx(window + 4096 / 2 / 128)
    assert sparse == pytest.approx(window + 2048 * (1 - 2048 / (2 * 4096)) / 4)
    assert [kinds[ratio].selects for ratio in (0, 4, 128)] == [False, True, False]
    assert visible_share(model, kinds[0], 4096, 0.5) == near / 4096


def test_absorbed_attention_has_one_latent_key_for_all_heads() -> None:
    problem, plain = of(**LATENT, indexer=INDEXER), of(**LATENT)
    assert gemms.core_widths(problem.model) == (128 + 32, 128)
    assert gemms.core_widths(plain.model) == (64 + 32, 64)
    assert gemms.core_kv_heads(problem.model, Shard.of(4, 1, True, True)) == 1
    assert gemms.sent_widths(problem.model) == (160,)
    assert gemms.sent_widths(plain.model) == (96, 64)


@pytest.mark.parametrize("name", ["deepseek-v3.2-671b", "deepseek-v4-flash-284b", "deepseek-v4-pro-1.6t", "gemma4-31b"])
def test_gemms_of_every_kind_are_its_weights(name: str) -> None:
    """All of them but norms, sinks and what compresses keys by their place."""
    model = load_architecture(name)
    for kind in layer_kinds(model):
        index = next(i for i in range(model.layers) if kind == layer_kind(model, i))
        made_of = mixer_gemms(model_of(model, kind), ONE, kind)
        found = sum(float(np.sum(gemm.n * gemm.k * gemm.count)) for gemm in made_of)
        counted = layer_parameters(model, index)
        weights = counted.attention - counted.attention_norms
        assert found == pytest.approx(weights, rel=2e-3)


def layer_kind(model: Architecture, index: int) -> LayerKind:
    return layer_kinds(model)[kind_of_layers(model)[index]]


def test_an_indexer_is_whole_on_every_rank_and_takes_time() -> None:
    problem, plain = of(**LATENT, indexer=INDEXER), of(**LATENT)
    chip, (kind,), (usual,) = problem.supplies[0].chip, layer_kinds(problem.model), layer_kinds(plain.model)
    for tp in (1, 4):
        shard = Shard.of(tp, 1, tp > 1, True)
        names = {each.name: each for each in layer_operators(problem, chip, shard, kind)}
        (queries,) = (each for each in mixer_gemms(problem.model, shard, kind) if each.name == "indexer queries")
        assert (queries.n.item(), queries.k.item()) == (4 * 64, 128)
        assert names["indexer"].passes[0] > 0
    assert "indexer" not in {each.name for each in layer_operators(plain, chip, ONE, usual)}


def test_ranks_that_exchange_heads_score_for_all() -> None:
    """Each of two scores twice its own tokens' queries, and gathers queries, keys and inputs of both."""
    problem = of(**LATENT, indexer=INDEXER)
    chip, (kind,) = problem.supplies[0].chip, layer_kinds(problem.model)
    gathers, exchanges = Shard.of(1, 1, False, True, cp=2, cp_gather=True), Shard.of(1, 1, False, True, cp=2, ulysses=2)
    seconds = [
        next(each.passes[0].item() for each in layer_operators(problem, chip, shard, kind) if each.name == "indexer")
        for shard in (gathers, exchanges)
    ]
    assert seconds[1] == pytest.approx(2 * seconds[0])
    gathered = 2 * (4 * 64 + 64 + 1024) * 1024 / 2  # bytes that each of two sends, at 100 GB/s
    assert selection_seconds(problem, chip, exchanges).item() == pytest.approx(gathered / 100e9)
    assert selection_seconds(problem, chip, gathers).item() == 0
    more = saved_elements(problem.model, exchanges, kind) - saved_elements(problem.model, gathers, kind)
    assert more.item() == 4 * 64 + 64 + 4 + 2 * 256 + 2 * 1024


def test_layers_that_take_anothers_choice_do_not_score() -> None:
    shared = of(**LATENT, indexer={**INDEXER, "every": 2, "first": 2}).model
    assert [shared.scores_keys(index) for index in range(4)] == [True, True, False, True]
    scoring, taking = (LayerKind(False, True, selects=True, scores=scores) for scores in (True, False))
    own = saved_elements(shared, ONE, scoring) - saved_elements(shared, ONE, taking)
    assert own == 2 * 4 * 64 + 2 * 64 + 4
    assert layer_parameters(shared, 0).selection - layer_parameters(shared, 2).selection == (
        128 * 4 * 64 + 1024 * 4 + 1024 * 64 + 2 * 64
    )


def test_what_compresses_keys_overlaps_where_an_indexer_selects() -> None:
    model = v4()
    assert compressor_widths(model, 4) == (4 * 512, 4 * 128)
    assert compressor_widths(model, 128) == (2 * 512, 0)
    assert compressor_widths(model, 0) == (0, 0)


def test_residual_streams_are_kept_sent_and_mixed() -> None:
    four, one = v4(), v4(residual_streams=1)
    problems = [ideal(model=each)[0] for each in (four, one)]
    sent = [comm.hop_bytes(problem, ONE).item() for problem in problems]
    assert sent[0] == 4 * sent[1]
    kinds = [kinds_by_compression(each)[128] for each in (four, one)]
    held = [memory.layer_bytes(problem, ONE, kind) for problem, kind in zip(problems, kinds, strict=True)]
    tokens = problems[0].sequence
    assert held[0].checkpoint == 4 * held[1].checkpoint
    assert held[0].full - held[1].full == 2 * 2 * 4 * 4096 * tokens  # the streams before each of two blocks
    chip = problems[0].supplies[0].chip
    seconds = [layer_seconds(problem, chip, ONE, kind).forward for problem, kind in zip(problems, kinds, strict=True)]
    assert seconds[0] > seconds[1]
    assert layer_parameters(four, 5).streams == 2 * (24 * 4 * 4096 + 24 + 3)
    assert final_streams_parameters(four) == 4 * 4 * 4096 + 4 + 1
    assert final_streams_parameters(one) == layer_parameters(one, 5).streams == 0


def test_layers_that_attend_fully_may_have_heads_of_another_width() -> None:
    model = load_architecture("gemma4-31b")
    near, full = sorted(layer_kinds(model), key=lambda kind: kind.full_attention)
    assert model_of(model, near) is model
    assert (model_of(model, full).head_dim, model_of(model, full).kv_heads) == (512, 4)
    problem, _ = ideal(model=model)
    assert problem_of(problem, near) is problem
    assert problem_of(problem, full) is problem_of(problem, full)
    kept = [memory.layer_bytes(problem, ONE, kind).full.item() for kind in (near, full)]
    more = (2 * 32 * 512 + 2 * 4 * 512) - (2 * 32 * 256 + 2 * 16 * 256)
    assert kept[1] - kept[0] == 2 * problem.sequence * more

"""FlagScale's own runner, arguments and process groups take exported meshes and read the plan out of them.

Needs torch, hydra-core, a Megatron-LM with megatron.training (MEGATRON_LM) and FlagScale's code, named by FLAGSCALE: a
checkout of da4935ec, or release 0.8.0 unpacked, where this code is the same. FLAGSCALE_MEGATRON: Megatron-LM with
FlagScale's patches, whose parser is then asked in place of the other with what the patches add.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("hydra")

from cpsolver.doors.export.judge import launch_of
from cpsolver.problem.ranks import Ints, MeshMap, RankMap
from cpsolver.rules import violations
from tests.real.flagscale_cases import CASES, Case

READER = Path(__file__).parent / "flagscale_read.py"
OF_MESH = {"tp": "tp", "cp": "cp", "dp": "dp", "dp_cp": "dp-cp"}
OF_EXPERTS = {"ep": "exp_ep", "etp": "exp_tp", "edp": "exp_dp"}
"""Our names of groups inside a mesh -> FlagScale's."""


def path() -> str:
    """What the reader imports from."""
    flagscale = os.environ.get("FLAGSCALE")
    megatron = os.environ.get("FLAGSCALE_MEGATRON") or os.environ.get("MEGATRON_LM")
    if flagscale is None or megatron is None:
        pytest.skip("name FlagScale's code by FLAGSCALE, and a Megatron-LM by MEGATRON_LM or FLAGSCALE_MEGATRON")
    return os.pathsep.join(filter(None, [megatron, flagscale, os.environ.get("PYTHONPATH")]))


@cache
def answers() -> dict[str, Any]:
    """Case -> what FlagScale makes of it."""
    imports = path()
    with TemporaryDirectory() as folder:
        folders = []
        for place, case in enumerate(CASES):
            folders.append(Path(folder) / str(place))
            folders[-1].mkdir()
            for name, text in launch_of(case.problem, case.strategy, "flagscale").files.items():
                (folders[-1] / name).write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(READER)],
            input=json.dumps(list(map(str, folders))),
            env={**os.environ, "PYTHONPATH": imports},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip([case.name for case in CASES], json.loads(done.stdout), strict=True))


def taken(case: Case) -> Any:
    """What FlagScale makes of the case, which it must take."""
    found = answers()[case.name]
    assert "error" not in found, f"{found['error']}\n{found.get('said')}"
    return found


def mapped(case: Case) -> MeshMap:
    """Our map of the case by mesh, of equal degrees too."""
    model = case.problem.model
    return MeshMap(case.strategy, 1, model.moe is not None, model.tied_embeddings)


def as_set(groups: list[list[int]] | Ints) -> set[tuple[int, ...]]:
    return {tuple(map(int, group)) for group in groups}


EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@EACH
def test_the_plan_is_legal(case: Case) -> None:
    assert violations(case.problem, case.strategy) == []


@EACH
def test_arguments_are_the_plan(case: Case) -> None:
    found, s, model = taken(case), case.strategy, case.problem.model
    shared = model.embeds_at_both_ends and s.distributed_optimizer and s.meshes[0][0].dp != s.meshes[-1][0].dp
    assert found["kinds"] == [kind for kind, width in zip(s.stage_chips, s.widths, strict=True) for _ in range(width)]
    for read, (mesh, groups) in zip(found["arguments"], s.meshes, strict=True):
        wanted = {
            "tensor_model_parallel_size": mesh.tp,
            "context_parallel_size": 1,
            "data_parallel_size": mesh.dp,
            "pipeline_model_parallel_size": sum(group.num_stages for group in groups),
            "micro_batch_size": s.of(mesh).mbs,
            "global_batch_size": case.problem.batch,
            "sequence_parallel": s.of(mesh).sequence_parallel,
            "use_distributed_optimizer": s.distributed_optimizer,
            "hetero_pipeline_layer_split": list(s.layers),
            "use_partial_reduce_for_shared_embedding": shared,
            "untie_embeddings_and_output_weights": not model.tied_embeddings,
            "mtp_num_layers": model.mtp_layers or None,
            **({"expert_model_parallel_size": mesh.ep, "expert_tensor_parallel_size": mesh.etp} if model.moe else {}),
        }
        assert {name: read[name] for name in wanted} == wanted
    assert found["layers"] in (None, list(s.layers))


@EACH
def test_groups_are_the_rank_maps(case: Case) -> None:
    found, ours = taken(case), mapped(case)
    names = OF_MESH | (OF_EXPERTS if ours.experts else {})
    for theirs in found["mended"]:
        for mesh, groups in zip(ours.meshes, theirs["meshes"], strict=True):
            for kind, name in names.items():
                assert as_set(mesh.groups[kind]) == as_set(groups[name]), (mesh.chip, kind)
        assert as_set(ours.groups["pp"]) == as_set(theirs["all"]["pp"])
        assert as_set(ours.groups["model"]) == as_set(theirs["all"]["tp-pp"])
        borders = [pair for border in ours.borders for pair in border.pairs.tolist()]
        assert sorted(borders) == theirs["border"]
        if ours.tied:
            assert as_set(ours.groups["embedding"]) == {(group[0], group[-1]) for group in theirs["all"]["pp"]}


@EACH
def test_what_flagscale_miscounts_is_told(case: Case) -> None:
    """Its ranks at borders are right as it is wherever no note says that they are not."""
    found, s = taken(case), case.strategy
    told = any("issue 658" in note for note in launch_of(case.problem, s, "flagscale").notes)
    right = found["as_it_is"] == found["mended"][-1]
    assert right or told
    stages_and_replicas = [mesh.dp > 1 and len(groups[0].layers) > 1 for mesh, groups in s.meshes[:-1]]
    assert not (right and any(stages_and_replicas))


@EACH
def test_equal_degrees_have_one_grid(case: Case) -> None:
    """Meshes one after the other are the grid of a plan of equal degrees."""
    if case.strategy.unequal:
        return
    meshes = mapped(case)
    whole = RankMap(case.strategy, 1, meshes.experts, meshes.tied).groups
    for kind in set(whole) & set(meshes.groups):
        assert as_set(whole[kind]) == as_set(meshes.groups[kind]), kind
    for kind in set(whole) - set(meshes.groups):
        assert as_set(whole[kind]) == {group for mesh in meshes.meshes for group in as_set(mesh.groups[kind])}, kind


def test_enough_plans_of_every_kind() -> None:
    plans = [case.strategy for case in CASES]
    assert len(plans) >= 20
    unequal = [s for s in plans if s.unequal]
    assert len(unequal) >= 15
    assert {len(s.meshes) for s in unequal} == {2, 3}
    assert {case.model for case in CASES if case.strategy.unequal} == {"dense", "experts", "tied", "mtp"}

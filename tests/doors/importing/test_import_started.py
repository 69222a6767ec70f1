"""Scripts that only start others: which one is read, and what it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.inputs.errors import InputError
from tests.support.scripts import GPT, torchrun

TRAIN = f"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES pretrain_gpt.py {GPT} --global-batch-size $GBS \\
  --tensor-model-parallel-size $1 --num-layers ${{LAYERS:-4}}
"""


def read(tmp_path: Path, text: str, train: str = TRAIN) -> Imported:
    (tmp_path / "jobs").mkdir(exist_ok=True)
    (tmp_path / "jobs" / "sweep.sh").write_text(text, encoding="utf-8")
    (tmp_path / "train.sh").write_text(train, encoding="utf-8")
    return import_source(str(tmp_path / "jobs" / "sweep.sh"), ImportOptions("h100"))


def test_a_sweep_is_the_first_script_that_it_starts(tmp_path: Path) -> None:
    """With its arguments, what is exported or set for it alone, and the scheduler's options, which count more."""
    text = "export LAYERS=8\nOTHER=3\nfor tp in 2 4; do\n  GBS=64 sbatch --nodes=4 ../train.sh $tp\ndone\n"
    found = read(tmp_path, text)
    assert found.source.endswith("train.sh")
    assert (found.model.layers, found.spec["cluster"]["num_gpus"]) == (8, 32)
    assert found.spec["training"]["global_batch_size"] == 64
    assert found.strategy is not None
    assert found.strategy.tp == 2
    assert found.notes[:2] == (
        "line 4 starts train.sh, which is read",
        "the script starts 2 scripts: the first is read",
    )


@pytest.mark.parametrize("start", ["bash train.sh 2", "./train.sh 2", "nohup sh ../train.sh 2 > log 2>&1 &"])
def test_it_stands_in_the_scripts_folder_or_above_it(tmp_path: Path, start: str) -> None:
    found = read(tmp_path, f"export GBS=32\n{start}\n")
    assert found.strategy is not None
    assert (found.strategy.tp, found.strategy.dp) == (2, 8)


@pytest.mark.parametrize(
    "text",
    [
        "bash missing.sh 2\n",
        "bash train.sh $(date +%s)\n",  # what is not known may change what it trains
        "ssh node train.sh 2\n",
        "bash sweep.sh\n",
        f"bash {'x' * 300}.sh\n",
        "bash train.sh 2\n",  # which then has no batch
    ],
)
def test_what_is_not_followed_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        read(tmp_path, text)


def test_a_script_that_trains_is_its_own(tmp_path: Path) -> None:
    found = read(tmp_path, "bash train.sh 2\n" + torchrun(GPT + " --global-batch-size 16"))
    assert found.source.endswith("sweep.sh")
    assert found.spec["cluster"]["num_gpus"] == 8


def test_scripts_that_start_one_another_come_to_an_end(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no training command"):
        read(tmp_path, "bash ../train.sh\n", "bash jobs/sweep.sh\n")

"""MindFormers' own classes on exported files, from stdin (JSON: a list of {plan, layers}).

Run as a script in an interpreter that has mindspore and mindformers on its path, on a machine without accelerators;
prints a JSON list of what they made of each, or the error. Packages that its modules import and no configuration needs
are empty where they are not installed.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

ABSENT = (
    *("hyper_parallel", "mindpet", "ftfy", "jieba", "rouge_chinese", "cv2", "tensorboardX", "nltk", "pynvml"),
    "deprecated",
)


def layers_of(config: Any, layers: int) -> Any:
    """MindFormers' own division of the layers into stages, and of those that are recomputed."""
    from mindformers.parallel_core.training_graph.transformer import utils

    model = config.model.model_config
    usual: dict[str, Any] = {
        "parallel_optimizer_comm_recompute": False,
        "select_comm_recompute": False,
        "mp_comm_recompute": True,
    }
    usual |= {"recompute_slice_activation": False, "select_recompute_exclude": False}
    usual |= {"select_comm_recompute_exclude": False, "cpu_offloading": False, "cpu_offloading_num_layers": None}
    sizes = {"pipeline_model_parallel_size": config.parallel_config.pipeline_stage, "gradient_aggregation_group": 4}
    parallel = types.SimpleNamespace(**{**usual, **sizes, "op_swap": None, **config.recompute_config})
    given = {"pipeline_interleave": False, "pipeline_scheduler": "1f1b", **config.parallel.get("pipeline_config", {})}
    own = mock.patch.object(utils, "is_legacy_model", return_value=False)
    with own, mock.patch.object(utils.ms, "get_auto_parallel_context", given.__getitem__):
        return utils.LayerSetting(layers, model.offset, parallel, model.pp_interleave_num)


def batch_of(config: Any) -> int:
    """Sequences of a step by MindFormers' trainer; it counts them of one replica, whose number it is told."""
    from mindformers.trainer import base_trainer

    stages, dp = config.parallel_config.pipeline_stage, config.parallel_config.data_parallel
    given = {"parallel_mode": "semi_auto_parallel", "full_batch": False, "dataset_strategy": ((dp, 1),) * 4}
    trainer = types.SimpleNamespace(
        config=config, get_pipeline_stages=lambda: stages, _reset_wrapper_for_pipeline_parallel=lambda: None
    )
    with mock.patch.object(base_trainer.ms, "get_auto_parallel_context", given.__getitem__):
        base_trainer.BaseTrainer._check_global_batch_size_for_auto_parallel(trainer)
    return int(trainer.global_batch_size)


def read(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What MindFormers makes of one file."""
    from mindformers.modules.transformer import TransformerOpParallelConfig, TransformerRecomputeConfig
    from mindformers.tools.register import MindFormerConfig

    path = folder / "plan.yaml"
    path.write_text(case["plan"], encoding="utf-8")
    config = MindFormerConfig(str(path))
    recompute = TransformerRecomputeConfig(**config.recompute_config)
    parallel = TransformerOpParallelConfig(recompute=recompute, **config.parallel_config)
    setting = layers_of(config, case["layers"])
    return {
        "parallel": {name: value for name, value in parallel.to_dict().items() if name != "recompute"},
        "ulysses": parallel.get_ulysses_cp_num(),
        "layers": setting.layer_list.tolist(),
        "recomputed": [list(map(int, chunk)) for chunk in setting.layer_recompute],
        "batch": batch_of(config),
        "learning_rate": config.lr_schedule.learning_rate,
        "model": dict(config.model.model_config),
    }


def main() -> None:
    """Answer stdin's cases."""
    sys.path.insert(0, str(Path(__file__).parent))
    from absent import lend
    from answering import answer

    with TemporaryDirectory() as folder:
        answer(lambda: lend("mindformers", ABSENT), lambda case: read(case, Path(folder)))


if __name__ == "__main__":
    main()

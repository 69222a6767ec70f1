"""FlagScale's own code on exported files: options, arguments of a rank of every mesh, process groups on a fake backend.

Run as a script in an interpreter that has torch, Hydra, megatron.training and FlagScale's flagscale on its path, with a
JSON list of folders in stdin; prints a JSON list of what it made of each, or the error. Where megatron.training is not
FlagScale's own, the options that its patch adds are read from the patch, and Megatron's validate_args is left out.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shlex
import sys
import types
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

FILLED = ["train.model.train_iters=1", "train.data.data_path=none"]
FILLED += ["train.data.tokenizer.tokenizer_type=NullTokenizer", "train.data.tokenizer.tokenizer_path=none"]
WITHOUT_KERNELS = ["--transformer-impl", "local", "--no-gradient-accumulation-fusion", "--no-rope-fusion"]
WITHOUT_KERNELS += ["--no-persist-layer-norm", "--no-masked-softmax-fusion", "--lr", "1e-4"]
READ = (
    *("tensor_model_parallel_size", "context_parallel_size", "expert_model_parallel_size", "data_parallel_size"),
    *("expert_tensor_parallel_size", "pipeline_model_parallel_size", "micro_batch_size", "sequence_parallel"),
    *("use_distributed_optimizer", "hetero_pipeline_layer_split", "use_partial_reduce_for_shared_embedding"),
    *("global_batch_size", "num_layers", "make_vocab_size_divisible_by", "num_distributed_optimizer_instances"),
    *("recompute_granularity", "recompute_num_layers", "untie_embeddings_and_output_weights", "mtp_num_layers"),
)


def options_of(folder: str, kinds: list[str]) -> dict[str, list[str]]:
    """The command line that FlagScale's runner makes of the two files, for hosts of every device type."""
    import hydra
    from flagscale.runner.runner_train import _get_args_megatron
    from flagscale.runner.utils import update_cmd_with_node_specific_config

    with hydra.initialize_config_dir(config_dir=folder, version_base=None):
        config = hydra.compose("plan", overrides=[*FILLED, "action=run"])
    line = list(_get_args_megatron(config))
    own = config.get("device_type_specific", None) or {}
    found = {}
    for kind in kinds:
        line[line.index("--hetero-current-device-type") + 1] = kind
        found[kind] = shlex.split(update_cmd_with_node_specific_config(shlex.join(line), own.get(kind, {})))
    return found


def types_of_ranks(folder: str) -> list[str]:
    """The device type of every rank, by the host file."""
    from flagscale.runner.utils import parse_hostfile

    hosts = parse_hostfile(str(Path(folder) / "hostfile"))
    return [host["type"] for host in hosts.values() for _ in range(host["slots"])]


def added_options(parser: Any) -> Any:
    """Every option that FlagScale's patch of Megatron-LM's arguments adds, as it stands there."""
    import flagscale

    patch = Path(flagscale.__file__).parent / "backends/Megatron-LM/megatron/training/arguments.py.patch"
    added = "\n".join(line[1:] for line in patch.read_text().splitlines() if line[:1] == "+")
    group, known = parser.add_argument_group(title="FlagScale"), set(parser._option_string_actions)
    for found in re.finditer(r"group\.add_argument\(", added):
        call = _call(added[found.start() :])
        name = ast.literal_eval(call.args[0])
        if name not in known:
            known.add(name)
            eval(compile(ast.Expression(call), str(patch), "eval"), {"group": group})
    return parser


def _call(text: str) -> Any:
    """The call that the text begins with."""
    for end in (found.end() for found in re.finditer(r"\)", text)):
        with contextlib.suppress(SyntaxError):
            return ast.parse(text[:end], mode="eval").body
    raise ValueError(text[:80])


@contextlib.contextmanager
def as_rank(rank: int, kinds: list[str], order: list[str]) -> Iterator[None]:
    """A process of that rank among those of these device types, which sends nothing."""
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def gather(into: list[Any], own: dict[str, Any], **_: Any) -> None:
        for place, kind in enumerate(kinds):
            each = {"rank": place, "device_type": kind, "process_mesh_idx": order.index(kind)}
            assert rank != place or own.items() <= each.items(), (own, each)
            into[place] = each

    torch.distributed.init_process_group("fake", rank=rank, world_size=len(kinds), store=FakeStore())
    try:
        with mock.patch.object(torch.distributed, "all_gather_object", gather):
            yield
    finally:
        torch.distributed.destroy_process_group()


def arguments_of(rank: int, kinds: list[str], options: list[str]) -> Any:
    """The arguments of a rank, validated as FlagScale's initialize_megatron does."""
    from flagscale.train.arguments import FSTrainArguments
    from megatron.training import arguments

    patched = hasattr(arguments, "_add_hetero_args")
    there = {"WORLD_SIZE": str(len(kinds)), "RANK": str(rank), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    with mock.patch.dict(os.environ, there), mock.patch.object(sys, "argv", ["train.py", *options, *WITHOUT_KERNELS]):
        args = arguments.parse_args(None if patched else added_options)
        own = FSTrainArguments(args)
        own.pre_validate_args()
        if patched:
            arguments.validate_args(args)
        else:
            args.virtual_pipeline_model_parallel_size = None
        own.post_validate_args()
    args.distributed_backend, args.enable_gloo_process_groups = "fake", False
    return args


def mended(self: Any, coords: list[list[int]], is_expert: bool = False) -> list[int]:
    """ProcessMesh.logical_coords_to_physical_ranks with the sizes of the dimensions that the coordinates have."""
    axes = ("tp", "ep", "dp", "pp") if is_expert else ("tp", "cp", "dp", "pp")
    sizes = [self.get_parallel_size(axis, is_expert=is_expert) for axis in axes]
    logical = [int(np.ravel_multi_index(coord, sizes, order="F")) + self._offset for coord in coords]
    return list(self._rank_mapper.to_physical_ranks(logical))


def groups_of(args: Any) -> dict[str, Any]:
    """Process groups of every mesh and of all, and who passes activations to whom."""
    from flagscale.train.hetero.parallel_context import ParallelContext

    with mock.patch.object(ParallelContext, "build_config"):
        context = ParallelContext(args)
    return {
        "meshes": [dict(mesh._all_group_ranks) for mesh in context._process_meshes],
        "all": dict(context._global_all_group_ranks),
        "border": sorted(map(list, context._inter_mesh_process_groups_pp)),
    }


def layers_of(args: Any) -> list[int] | None:
    """Layers that FlagScale's Megatron-LM builds on every stage; None where another one is there."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.training import arguments

    if not hasattr(arguments, "_add_hetero_args"):
        return None
    config = arguments.core_transformer_config_from_args(args)
    found, stages = list[int](), len(args.hetero_pipeline_layer_split)
    with mock.patch.object(parallel_state, "get_pipeline_model_parallel_world_size", return_value=stages):
        for stage in range(stages):
            with mock.patch.object(parallel_state, "get_pipeline_model_parallel_rank", return_value=stage):
                found.append(int(get_num_layers_to_build(config, vp_stage=None, pp_rank=stage)))
    return found


def read(folder: str) -> dict[str, Any]:
    """What FlagScale makes of one plan: arguments of the first rank of every mesh, and its groups."""
    from flagscale.train.hetero.parallel_context import ProcessMesh

    kinds = types_of_ranks(folder)
    order = list(dict.fromkeys(kinds))
    options = options_of(folder, order)
    found: dict[str, Any] = {"kinds": kinds, "arguments": []}
    for kind in order:
        with as_rank(kinds.index(kind), kinds, order):
            args = arguments_of(kinds.index(kind), kinds, options[kind])
            found["arguments"].append({name: getattr(args, name) for name in READ})
            found["as_it_is"], found["layers"] = groups_of(args), layers_of(args)
        mend = mock.patch.object(ProcessMesh, "logical_coords_to_physical_ranks", mended)
        with as_rank(kinds.index(kind), kinds, order), mend:
            found.setdefault("mended", []).append(groups_of(args))
    return found


@contextlib.contextmanager
def five_axes() -> Iterator[None]:
    """Megatron-LM's order of ranks without the axes that came after FlagScale's, all of size 1."""
    from megatron.core import parallel_state

    known = parallel_state.RankGenerator

    def five(**sizes: Any) -> Any:
        made = known(**sizes)
        made.order = "-".join(made.order.split("-")[:5])
        made.ordered_size = made.ordered_size[:5]
        return made

    with mock.patch.object(parallel_state, "RankGenerator", five):
        yield


def main() -> None:
    """Answer stdin's cases."""
    warnings.simplefilter("ignore")
    if not hasattr(typing, "override"):
        typing.override = lambda function: function  # type: ignore[attr-defined]
    import torch

    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    torch.cuda.get_device_properties = lambda *_, **__: types.SimpleNamespace(major=9, minor=0)
    answers = []
    for folder in json.load(sys.stdin):
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), five_axes():
                answers.append(read(folder))
        except (Exception, SystemExit) as error:
            answers.append({"error": f"{type(error).__name__}: {error}", "said": said.getvalue()[-1500:]})
    json.dump(answers, sys.stdout, default=str)


if __name__ == "__main__":
    main()

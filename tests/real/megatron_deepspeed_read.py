"""BigScience's own parser on exported options, from stdin (JSON: {arguments, world} each).

Run as a script in an interpreter that has its Megatron-DeepSpeed (8387ae1) on its path, on a machine without
accelerators; prints a JSON list of the values that it read, or the error. Its package imports kernels with itself:
of it only the modules of the parser are, with nothing of PyTorch but the names of types, and DeepSpeed's own two
arguments in DeepSpeed's place.
"""

from __future__ import annotations

import ast
import os
import sys
import types
from argparse import ArgumentParser
from pathlib import Path
from typing import Any
from unittest import mock

USERS = ["--train-iters", "10", "--lr", "1e-4", "--min-lr", "0", "--data-path", "x"]
READ = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "data_parallel_size", "micro_batch_size"),
    *("global_batch_size", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "seq_length"),
    *(
        "embed_layernorm",
        "glu_activation",
        "checkpoint_activations",
        "checkpoint_num_layers",
        "partition_activations",
        "checkpoint_in_cpu",
        "zero_stage",
        "deepspeed",
    ),
    *("position_embedding_type", "bf16", "fp16", "deepspeed", "deepspeed_config"),
)


def read(case: dict[str, Any]) -> dict[str, Any]:
    """What the parser makes of one command line."""
    arguments = sys.modules["megatron.arguments"]
    there = {"WORLD_SIZE": str(case["world"]), "RANK": "1"}
    line = ["pretrain_gpt.py", *case["arguments"], *USERS]
    with mock.patch.dict(os.environ, there), mock.patch.object(sys, "argv", line):
        args = arguments.parse_args()
    found = {name: getattr(args, name) for name in READ}
    return {**found, "position_embedding_type": found["position_embedding_type"].name}


def _module(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module
    return module


def _of_deepspeed(parser: ArgumentParser) -> ArgumentParser:
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--deepspeed_config", type=str)
    return parser


def _gates(package: Path) -> dict[str, None]:
    """The names of gated activations, from the text of a module that needs PyTorch."""
    tree = ast.parse((package / "model" / "glu_activations.py").read_text(encoding="utf-8"))
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "GLU_ACTIVATIONS"
    )
    assert isinstance(table, ast.Dict)
    return {key.value: None for key in table.keys if isinstance(key, ast.Constant)}  # type: ignore[misc]


def patched() -> None:
    """Import the parser alone."""
    package = next(path for entry in sys.path if (path := Path(entry) / "megatron" / "arguments.py").is_file()).parent
    _module("torch", float="fp32", half="fp16", bfloat16="bf16")
    _module("deepspeed", add_config_arguments=_of_deepspeed)
    megatron = _module("megatron", __path__=[str(package)])
    gates = _module("megatron.model.glu_activations", GLU_ACTIVATIONS=_gates(package))
    megatron.model = _module("megatron.model", glu_activations=gates)  # type: ignore[attr-defined]
    __import__("megatron.arguments")


def main() -> None:
    """Answer stdin's cases."""
    sys.path.insert(0, str(Path(__file__).parent))
    from answering import answer

    answer(patched, read)


if __name__ == "__main__":
    main()

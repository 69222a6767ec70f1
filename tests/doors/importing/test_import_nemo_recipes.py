"""Recipes of NeMo 2, read as text: what their functions and the classes of their models say, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError

BASE = """
from megatron.core.transformer.transformer_config import TransformerConfig

@dataclass
class GPTConfig(TransformerConfig, io.IOMixin):
    share_embeddings_and_output_weights: bool = True
    position_embedding_type: str = "learned_absolute"
    vocab_size: int = None
"""
LLAMA = """
from dataclasses import field
import torch.nn.functional as F
from nemo.collections.llm.gpt.model.base import GPTConfig, GPTModel

class LlamaConfig(GPTConfig):
    normalization: str = "RMSNorm"
    activation_func = F.silu
    activation_func: Callable = F.silu
    gated_linear_unit: bool = True
    position_embedding_type: str = "rope"
    add_bias_linear: bool = False
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    share_embeddings_and_output_weights: bool = False

class Llama3Config8B(LlamaConfig):
    num_layers: int = 32
    hidden_size: int = 4096
    ffn_hidden_size: int = 14336
    num_attention_heads: int = 32
    num_query_groups: int = 8

class Sparse(LlamaConfig):
    num_layers: int = 4
    hidden_size: int = 1024
    ffn_hidden_size: int = field(default=4096)
    num_attention_heads: int = 16
    num_moe_experts: int = 8
    moe_layer_freq: list = field(default_factory=lambda: [0] * 1 + [1] * 3)
    vocab_size: int = 50000

class Capped(Llama3Config8B):
    final_logit_softcapping: float = 30.0

class LlamaEmbeddingConfig(Llama3Config8B):
    pass
"""
PRECISION = """
import nemo_run as run
def bf16_mixed():
    return run.Config(MegatronMixedPrecision, precision="bf16-mixed", grad_reduce_in_fp32=True)
def bf16_with_fp8_mixed():
    cfg = bf16_mixed()
    cfg.fp8 = 'hybrid'
    cfg.fp8_param_gather = True
    return cfg
"""
HYBRID = """
from megatron.core.transformer.transformer_config import TransformerConfig

class SSMConfig(TransformerConfig):
    position_embedding_type: str = "none"
    normalization: str = "RMSNorm"

class Hybrid(SSMConfig):
    hybrid_override_pattern: str = "M-" * 2 + "M*-"
    num_layers: int = 7
    hidden_size: int = 4096
    ffn_hidden_size: int = 16384
    num_attention_heads: int = 32
    activation_func: callable = lambda x: torch.pow(F.relu(x), 2)
    vocab_size: int = 131072
"""
RECIPE = """
import nemo_run as run
from nemo import lightning as nl
from nemo.collections.llm.gpt.model.llama import Llama3Config8B, Sparse, Capped, LlamaEmbeddingConfig, LlamaModel
from nemo.collections.llm.recipes.precision import bf16_mixed, bf16_with_fp8_mixed
from megatron.core.optimizer import OptimizerConfig

def model():
    return run.Config(LlamaModel, config=run.Config(Llama3Config8B))

def trainer(tensor_parallelism: int = 2, num_nodes: int = 1, num_gpus_per_node: int = 8, callbacks=None):
    strategy = run.Config(
        nl.MegatronStrategy,
        tensor_model_parallel_size=tensor_parallelism,
        context_parallel_size=2,
        sequence_parallel=True,
        ckpt_async_save=True,
        ddp=run.Config(DistributedDataParallelConfig, overlap_grad_reduce=True, overlap_param_gather=True),
    )
    return run.Config(
        nl.Trainer, devices=num_gpus_per_node, num_nodes=num_nodes, plugins=bf16_mixed(), strategy=strategy,
        callbacks=callbacks,
    )

@run.cli.factory(name="llama3_8b")
def pretrain_recipe(name: str = "default", num_nodes: int = 1, performance_mode: bool = False) -> run.Partial:
    recipe = run.Partial(
        pretrain,
        model=model(),
        trainer=trainer(num_nodes=num_nodes),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=512, micro_batch_size=1),
        optim=run.Config(Module, config=run.Config(OptimizerConfig, optimizer="adam", use_distributed_optimizer=True)),
    )
    if performance_mode:
        recipe = faster(recipe)
    return recipe

def faster(recipe):
    if not recipe.trainer.callbacks:
        recipe.trainer.callbacks = []
    recipe.trainer.callbacks.extend([run.Config(MegatronCommOverlapCallback, tp_comm_overlap=True)])
    recipe.trainer.plugins.grad_reduce_in_fp32 = False
    return recipe

def finetune_recipe(peft_scheme: str = "lora") -> run.Partial:
    recipe = pretrain_recipe()
    recipe.data = run.Config(SquadDataModule, seq_length=2048, global_batch_size=128, micro_batch_size=1)
    if peft_scheme is not None:
        recipe.peft = run.Config(LoRA)
        recipe.peft.dim = 8
    return recipe
"""
LONGER = """
import nemo_run as run
from nemo.collections.llm.recipes import llama3_8b

def pretrain_recipe(num_nodes: int = 4) -> run.Partial:
    recipe = llama3_8b.pretrain_recipe(num_nodes=num_nodes)
    recipe.trainer.strategy.context_parallel_size = 4
    recipe.data = run.Config(MockDataModule, seq_length=16384, global_batch_size=256, micro_batch_size=1)
    return recipe
"""


def checkout(folder: Path, recipe: str = RECIPE) -> Path:
    """A recipe in a checkout of NeMo, with what it calls; its file."""
    llm = folder / "nemo" / "collections" / "llm"
    files = {
        "gpt/model/base.py": BASE,
        "gpt/model/llama.py": LLAMA,
        "gpt/model/ssm.py": HYBRID,
        "gpt/model/__init__.py": "from nemo.collections.llm.gpt.model.ssm import Hybrid\n",
        "recipes/precision/__init__.py": PRECISION,
        "recipes/llama3_8b.py": recipe,
        "recipes/llama3_8b_16k.py": LONGER,
    }
    for name, text in files.items():
        (llm / name).parent.mkdir(parents=True, exist_ok=True)
        (llm / name).write_text(text)
    return llm / "recipes" / "llama3_8b.py"


def read(folder: Path, words: str = "", recipe: str = RECIPE, file: str = "", **options: Any) -> Imported:
    path = checkout(folder, recipe)
    path = path.with_name(file) if file else path
    return import_source(str(path), ImportOptions("h100", arguments=tuple(words.split()), **options))


def troubles(folder: Path, words: str = "", recipe: str = RECIPE) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(folder, words, recipe)
    return [f"{trouble.where} {trouble.message}".strip() for trouble in caught.value.troubles]


def test_a_recipe_is_its_model_its_trainer_and_its_data(tmp_path: Path) -> None:
    found = read(tmp_path)
    plan, training = found.strategy, found.spec["training"]
    assert found.spec["model"] == "llama3.1-8b"
    assert plan is not None
    assert (plan.tp, plan.cp, plan.dp, plan.sequence_parallel, plan.distributed_optimizer) == (2, 2, 2, True, True)
    assert (training["global_batch_size"], training["sequence_length"], training["precision"]) == (512, 8192, "bf16")
    assert found.spec["cluster"] == {"num_gpus": 8, "gpus_per_node": 8, "chips": "h100"}
    assert found.framework is not None
    assert (found.framework.stack, found.framework.launcher) == ("megatron-core", None)
    assert found.unused == found.unknown == ()
    assert not any("tp_comm_overlap" in note for note in found.notes)


def test_arguments_of_the_recipe_and_overrides_are_given_as_words(tmp_path: Path) -> None:
    words = "pretrain_recipe num_nodes=4 performance_mode=true trainer.strategy.pipeline_model_parallel_size=2"
    found = read(tmp_path, f"{words} model.config.recompute_granularity=selective")
    assert found.strategy is not None
    assert (found.strategy.pp, found.strategy.dp, found.strategy.recompute[0]) == (2, 4, "selective")
    assert found.framework is not None
    assert found.framework.stack == "nemo"
    assert read(tmp_path, "trainer.strategy.nonsense=3").unused == ("nonsense",)


def test_a_recipe_that_calls_another_files(tmp_path: Path) -> None:
    found = read(tmp_path, file="llama3_8b_16k.py")
    assert found.strategy is not None
    assert (found.strategy.cp, found.spec["cluster"]["num_gpus"]) == (4, 32)
    assert found.spec["training"]["sequence_length"] == 16384


def test_a_tuning_has_adapters_and_sequences_as_long_as_its_data(tmp_path: Path) -> None:
    found = read(tmp_path, "finetune_recipe")
    assert found.spec["training"]["lora"]["rank"] == 8
    assert any("as long as their data" in note for note in found.notes)
    assert "lora" not in read(tmp_path, "finetune_recipe peft_scheme=none").spec["training"]


def test_experts_and_fp8_are_those_of_the_class_and_the_plugin(tmp_path: Path) -> None:
    recipe = RECIPE.replace("run.Config(Llama3Config8B)", "run.Config(Sparse, moe_router_topk=1, vocab_size=60000)")
    found = read(tmp_path, recipe=recipe.replace("plugins=bf16_mixed()", "plugins=bf16_with_fp8_mixed()"))
    experts, training = found.model.moe, found.spec["training"]
    assert experts is not None
    assert (experts.experts, experts.top_k, experts.first_dense, found.model.vocab) == (8, 1, 1, 60000)
    assert (training["precision"], training["fp8_recipe"], training["fp8_parameter_gather"]) == ("fp8", "delayed", True)


def test_a_hybrid_whose_class_is_named_through_a_package(tmp_path: Path) -> None:
    recipe = RECIPE.replace("run.Config(Llama3Config8B)", "run.Config(llm.Hybrid)")
    found = read(tmp_path, recipe=recipe.replace("plugins=bf16_mixed()", "plugins=[bf16_mixed()]"))
    assert (found.model.layer_pattern, found.model.activation) == ("M-M-M*-", "relu2")
    assert found.strategy is not None


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("run.Config(Llama3Config8B)", "run.Config(Capped)", "capped logits"),
        ("run.Config(Llama3Config8B)", "run.Config(SSMConfig)", "is of no class that is read here"),
        ("nl.MegatronStrategy", "nl.FSDPStrategy", "is no MegatronStrategy"),
        ("plugins=bf16_mixed()", "plugins=None", "trainer.plugins is not clear from the text"),
        ("context_parallel_size=2", "context_parallel_size=cp", "trainer.strategy.context_parallel_size is not clear"),
        ("seq_length=8192", "seq_length=length", "data.seq_length is not clear from the text"),
        ("return recipe\n\ndef faster", "return other\n\ndef faster", "gives no configuration that can be read"),
        ("def pretrain_recipe", "def my_recipe", "has several recipes"),
    ],
)
def test_what_a_plan_needs_and_no_text_says_is_an_error(tmp_path: Path, before: str, after: str, told: str) -> None:
    assert before in RECIPE
    assert any(told in trouble for trouble in troubles(tmp_path, recipe=RECIPE.replace(before, after, 1)))


def test_words_that_are_none_and_files_without_recipes(tmp_path: Path) -> None:
    assert troubles(tmp_path, "pretrain") == ["--args is no recipe of the file"]
    assert troubles(tmp_path, "nodes=2") == ["--args is no override"]
    assert troubles(tmp_path, "name.first=2") == ["--args sets a field of what has none in the recipe"]
    assert read(tmp_path, "trainer.max_steps=2").unused == ("trainer.max_steps",)
    assert troubles(tmp_path, recipe="import nemo_run as run\nrun.run(recipe)\n") == [
        "has no function that gives a recipe of NeMo 2"
    ]


def test_fsdp_leaves_no_plan_and_an_embedding_is_something_else(tmp_path: Path) -> None:
    found = read(tmp_path, "trainer.strategy.fsdp=pytorch")
    assert found.strategy is None
    assert any("fsdp" in reason for reason in found.refusals)
    with pytest.raises(OutOfScopeError):
        read(tmp_path, recipe=RECIPE.replace("run.Config(Llama3Config8B)", "run.Config(LlamaEmbeddingConfig)"))

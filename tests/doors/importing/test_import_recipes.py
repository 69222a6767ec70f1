"""Recipes of Megatron-Bridge, read as text, as the arguments of Megatron-LM that mean the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.doors.importing.recipe_text import Recipes
from cpsolver.doors.importing.recipe_values import UNCLEAR, Configured
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import CORE
from tests.support.command import in_tmp, run  # noqa: F401

HELPERS = """
from megatron.bridge.training.config import ConfigContainer, DistributedDataParallelConfig

SEQUENCE = 4096

def _common(seq_length=SEQUENCE) -> ConfigContainer:
    cfg = ConfigContainer(
        model=None,
        train=TrainingConfig(global_batch_size=512, micro_batch_size=1),
        dataset=GPTDatasetConfig(sequence_length=seq_length),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
        mixed_precision="bf16_mixed",
    )
    return cfg
"""
RECIPE = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _common
from megatron.bridge.training.config import ConfigContainer

def llama_pretrain_config() -> ConfigContainer:
    cfg = _common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.sequence_parallel = True
{more}
    return cfg
"""
"""A recipe as Megatron-Bridge writes them."""


@pytest.fixture
def bridge(tmp_path: Path) -> Path:
    """A checkout's folder of recipes, with what the recipe above takes from beside it."""
    folder = tmp_path / "src" / "megatron" / "bridge" / "recipes"
    folder.mkdir(parents=True)
    (folder / "common.py").write_text(HELPERS)
    return folder


def recipe(more: str = "") -> str:
    """The recipe with further statements."""
    return RECIPE.format(more="\n".join(f"    {line}" for line in more.splitlines()))


def read(folder: Path, text: str, *words: str, chip: str | None = "h100", num_gpus: int | None = 64) -> Imported:
    """A recipe's import from a file of the checkout."""
    (folder / "llama.py").write_text(text)
    return import_source(str(folder / "llama.py"), ImportOptions(chip=chip, num_gpus=num_gpus, arguments=words))


def wrong(folder: Path, text: str, *words: str, **options: Any) -> str:
    """What is wrong with it, in words."""
    with pytest.raises(InputError) as error:
        read(folder, text, *words, **options)
    return "; ".join(map(str, error.value.troubles))


def test_a_recipe_is_read_with_what_it_calls(bridge: Path) -> None:
    found = read(bridge, recipe())
    assert found.spec["model"] == "llama3.1-8b"
    assert found.spec["cluster"] == {"num_gpus": 64, "gpus_per_node": 8, "chips": "h100"}
    training = found.spec["training"]
    assert (training["global_batch_size"], training["sequence_length"], training["precision"]) == (512, 4096, "bf16")
    assert (found.spec["stack"], found.spec["launcher"]) == ("megatron-core", "megatron-bridge")
    plan = found.strategy
    assert plan is not None
    assert (plan.tp, plan.pp, plan.dp, plan.mbs, plan.sequence_parallel) == (2, 2, 16, 1, True)
    assert plan.recompute[0] == "none"
    assert not any("counts on it" in note for note in found.notes)


def test_overrides_are_those_of_the_command_line(bridge: Path) -> None:
    words = ("llama_pretrain_config", "train.micro_batch_size=2", "model.recompute_granularity=selective")
    found = read(bridge, recipe(), *words, "model.recompute_modules=[core_attn]", "ddp.overlap_grad_reduce=false")
    plan = found.strategy
    assert plan is not None
    assert (plan.mbs, plan.recompute_modules[0]) == (2, ("core_attn",))
    assert any("ddp.overlap_grad_reduce" in note or "overlap_grad_reduce is off" in note for note in found.notes)
    assert "is no override" in wrong(bridge, recipe(), "llama_pretrain_config", "micro batch=2")
    assert "model.tensor_model_parallel_size" in wrong(bridge, recipe(), "model.tensor_model_paralel_size=4")
    assert read(bridge, recipe(), "logger.log_interval=1", *words[:1]).unused == ("logger.log_interval",)
    assert "must hold fields" in wrong(bridge, recipe(), "model=3")
    assert "must be a plain value" in wrong(bridge, recipe(), "model.tensor_model_parallel_size=[1,2]")


def test_devices_and_chip_are_those_of_the_name(bridge: Path) -> None:
    text = recipe().replace("llama_pretrain_config", "llama_pretrain_16gpu_gb200_bf16_config")
    found = read(bridge, text, chip=None, num_gpus=None)
    assert found.spec["cluster"] == {"num_gpus": 16, "gpus_per_node": 4, "chips": "gb200"}
    assert any("gb200: taken for the chip" in note for note in found.notes)
    found = read(bridge, text.replace("_gb200_", "_vr200_"), chip="gb200", num_gpus=None)
    assert found.spec["cluster"]["gpus_per_node"] == 4


def test_gradients_in_16_bits_are_another_stack(bridge: Path) -> None:
    """As mixed precision says, whose word Megatron-Bridge puts in the place of ddp's."""
    half = "cfg.mixed_precision = MixedPrecisionConfig(bf16=True)\ncfg.mixed_precision.grad_reduce_in_fp32 = False"
    assert read(bridge, recipe(half)).spec["stack"] == "megatron-bridge"
    ddp = "cfg.ddp.grad_reduce_in_fp32 = False"
    assert read(bridge, recipe(ddp)).spec["stack"] == "megatron-core"
    assert read(bridge, recipe(f"{ddp}\ncfg.mixed_precision = None")).spec["stack"] == "megatron-bridge"


def test_precision_by_name_and_by_function(bridge: Path) -> None:
    assert read(bridge, recipe('cfg.mixed_precision = "fp16_mixed"')).spec["training"]["precision"] == "fp16"
    eight = 'cfg.mixed_precision = MixedPrecisionConfig(bf16=True, fp8="hybrid", fp8_recipe="delayed")'
    assert read(bridge, recipe(eight)).spec["training"]["precision"] == "fp8"
    unknown = recipe('cfg.mixed_precision = get_mixed_precision_config("bf16_with_fp8_mixed")')
    assert "mixed_precision=VALUE" in wrong(bridge, unknown)
    (bridge.parent / "training").mkdir()
    made = "def bf16_with_fp8_mixed():\n    return MixedPrecisionConfig(bf16=True, fp8='hybrid')\n"
    (bridge.parent / "training" / "mixed_precision.py").write_text(made)
    assert read(bridge, unknown).spec["training"]["precision"] == "fp8"
    assert "has none" in wrong(bridge, recipe(), "mixed_precision.fp8=hybrid")


def test_layers_listed_by_chunk_are_a_layout(bridge: Path) -> None:
    layers = '[["embedding"] + ["decoder"] * 15, ["decoder"] * 17 + ["loss"]]'
    plan = read(bridge, recipe(f"cfg.model.pipeline_model_parallel_layout = {layers}")).strategy
    assert plan is not None
    assert [group.layers for group in plan.groups] == [(15, 17)]


def test_adapters_are_those_of_the_recipe(bridge: Path) -> None:
    found = read(bridge, recipe('cfg.peft = LoRA(dim=8, target_modules=["linear_qkv", "linear_proj"])'))
    assert found.spec["training"]["lora"] == {"rank": 8, "dropout": 0.0, "targets": ["linear_qkv", "linear_proj"]}
    found = read(bridge, recipe("cfg.peft = LoRA(a2a_experimental=True, share_expert_adapters=False)"))
    assert found.spec["training"]["lora"] == {"rank": 32, "dropout": 0.0, "all_to_all": True}  # no experts
    found = read(bridge, recipe("cfg.peft = CanonicalLoRA(dim=8)"))
    assert found.strategy is None
    assert "CanonicalLoRA" in found.refusals[0]
    for unclear in ("dim=unknown", "target_modules=[unknown]", "experts_shared_outer_loras=True"):
        found = read(bridge, recipe(f"cfg.peft = LoRA({unclear})"))
        assert found.strategy is None
        assert unclear.partition("=")[0] in found.refusals[0]


def test_several_recipes_ask_for_a_name(bridge: Path) -> None:
    text = recipe() + "\ndef llama_sft_config() -> ConfigContainer:\n    return llama_pretrain_config()\n"
    assert "several recipes" in wrong(bridge, text)
    told = wrong(bridge, text, "llama_pretrian_config")
    assert "is no recipe" in told
    assert "llama_pretrain_config" in told
    assert read(bridge, text, "llama_sft_config").spec["model"] == "llama3.1-8b"


def test_what_is_unclear_and_counts_is_refused_with_the_override_that_says_it(bridge: Path) -> None:
    text = recipe("cfg.model.pipeline_model_parallel_size = int(os.environ['PP'])")
    assert "model.pipeline_model_parallel_size=VALUE" in wrong(bridge, text)
    name = "llama_pretrain_config"
    plan = read(bridge, text, name, "model.pipeline_model_parallel_size=4").strategy
    assert plan is not None
    assert plan.pp == 4


def test_sizes_that_a_recipe_sets_over_its_model_count(bridge: Path) -> None:
    model = read(bridge, recipe("cfg.model.num_layers = 4\ncfg.model.vocab_size = 64000")).spec["model"]
    assert (model["layers"], model["vocab"], model["hidden"]) == (4, 64_000, 4096)
    assert "model.num_moe_experts: changes the shape" in wrong(bridge, recipe("cfg.model.num_moe_experts = 8"))


def test_models_that_are_none_of_the_catalogue_are_named(bridge: Path) -> None:
    assert "llama3.1-8b" in wrong(bridge, recipe().replace("Meta-Llama-3-8B", "Meta-Llama3-8BB"))
    with pytest.raises(OutOfScopeError):
        read(bridge, recipe().replace("meta-llama/Meta-Llama-3-8B", "Qwen/Qwen9-VL-9B"))
    with pytest.raises(OutOfScopeError):
        read(bridge, recipe().replace("def llama_pretrain", "def llama_vl_pretrain"))
    assert "AutoBridge" in wrong(bridge, recipe("cfg.model = LlamaProvider(num_layers=2)"))


HYBRID = """cfg.model = HybridModelProvider(
    hybrid_layer_pattern="M-M*", num_layers=4, hidden_size=4096, ffn_hidden_size=8192, num_attention_heads=32,
    num_query_groups=8, mamba_num_heads=64, mamba_head_dim=64, mamba_state_dim=128, activation_func=squared_relu,
    seq_length=4096,
)
cfg.tokenizer.tokenizer_type = "NullTokenizer"
cfg.tokenizer.vocab_size = 131071"""
GPT = """cfg.model = GPTModelProvider(
    num_layers=2, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=16, seq_length=2048,
    vocab_size=50304{more}
)"""


def test_a_model_of_the_recipe_s_own_is_read_by_its_fields(bridge: Path) -> None:
    imports = "from megatron.core.activations import squared_relu\nimport torch.nn.functional as F\n"
    hybrid = imports + recipe(HYBRID)
    hybrid = hybrid.replace("cfg = _common()", "cfg = _common()\n    cfg.tokenizer = TokenizerConfig()")
    model = read(bridge, hybrid).spec["model"]
    assert (model["layer_pattern"], model["vocab"], model["activation"]) == ("M-M*", 131_072, "relu2")
    assert (model["position"], model["norm"], model["tied_embeddings"]) == ("none", "rmsnorm", False)
    assert model["mamba"] == {"heads": 64, "head_dim": 64, "groups": 8, "state": 128, "conv": 4}
    assert read(bridge, hybrid.replace("HybridModelProvider", "MambaModelProvider")).spec["model"] == model
    plain = read(bridge, imports + recipe(GPT.format(more=""))).spec["model"]
    assert (plain["position"], plain["max_positions"], plain["tied_embeddings"]) == ("learned", 2048, True)
    gated = ", gated_linear_unit=True, activation_func=F.silu, position_embedding_type='rope', add_bias_linear=False"
    other = read(bridge, imports + recipe(GPT.format(more=gated))).spec["model"]
    assert (other["gated_mlp"], other["position"], other["bias_mlp"]) == (True, "rope", False)


def test_what_a_model_of_its_own_leaves_open_is_asked_for(bridge: Path) -> None:
    assert "--vocab-size" in wrong(bridge, recipe(GPT.format(more="").replace("vocab_size=50304", "")))
    assert "model.hidden_size" in wrong(bridge, recipe(GPT.format(more="").replace("=1024", "=unknown")))
    assert "activation_func" in wrong(bridge, recipe(GPT.format(more=", activation_func=tanh_of_mine")))
    assert "no pattern" in wrong(bridge, recipe(GPT.format(more=", hybrid_attention_ratio=0.1")))


def test_a_recipe_outside_of_a_checkout_is_told_where_it_belongs(tmp_path: Path) -> None:
    assert "in a checkout" in wrong(tmp_path, recipe())
    assert "no Python" in wrong(tmp_path, recipe("cfg = = 1")) or "is not Python" in wrong(
        tmp_path, recipe("cfg = = 1")
    )


def test_the_command_imports_a_recipe(bridge: Path) -> None:
    (bridge / "llama.py").write_text(recipe())
    done = run(
        "import",
        str(bridge / "llama.py"),
        "--chip",
        "h100",
        "--num-gpus",
        "64",
        "--args",
        "train.global_batch_size=128",
    )
    assert done.exit_code == 0, done.output
    assert "128" in done.output


def follow(tmp_path: Path, body: str) -> Any:
    """What `made` gives, a function with this body."""
    path = tmp_path / "made.py"
    text = "import copy\nfrom elsewhere import Thing\nOWN = {'a': 3}\n"
    text += "def put(held, value=7):\n    held.y = value\n"
    text += "def made():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return Recipes(None).called(Recipes(None).read(path, text), "made")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("x = 3\nx = x * 2 if x > 2 else 0\nreturn x", 6),
        ("return [1] * 2 + [OWN['a']]", [1, 1, 3]),
        ("a, b = (1, 2)\nreturn b - a", 1),
        ("x = []\nfor i in [1, 2]:\n    x.append(i)\nreturn x", [1, 2]),
        ("return [[i, 1] for i in [1, 2]]", [[1, 1], [2, 1]]),
        ("x = {**OWN, 'b': 4}\nx.update(c=5)\nreturn x", {"a": 3, "b": 4, "c": 5}),
        ("for k, v in OWN.items():\n    x = (k, v)\nreturn x", ("a", 3)),
        ("try:\n    x = 1\nexcept ValueError:\n    x = 2\nelse:\n    x = x + 4\nreturn x", 5),
        ("with Thing() as t:\n    x = 1\nreturn x", 1),
        ("x = Thing(y=1)\nput(x, 2)\nreturn x.y", 2),
        ("x = Thing(y=1)\nput(x, **{'value': 4})\nreturn x.y", 4),
        ("x = Thing(y=1)\nz = copy.deepcopy(x)\nz.y = 2\nreturn x.y", 1),
        ("x = Thing(y=1)\nsetattr(x, 'y', 5)\nreturn getattr(x, 'y')", 5),
        ("x = Thing(y=1)\nreturn hasattr(x, 'y') and isinstance(x.y, int)", True),
        ("return 'ABC'.lower() in ('abc', 'd')", True),
        ("def inner():\n    return 3\nreturn 4", 4),
        ("return not (1 < 2 and None)", True),
    ],
)
def test_statements_are_followed(tmp_path: Path, body: str, found: Any) -> None:
    assert follow(tmp_path, body) == found


@pytest.mark.parametrize(
    "body",
    [
        "x = 1\nif unknown:\n    x = 2\nreturn x",
        "if unknown:\n    return 1\nreturn 2",
        "x = 1\nwhile x < 3:\n    x += 1\nreturn x",
        "x = 1\nfor i in unknown:\n    x = i\nreturn x",
        "x = 1\nfor i in [1, 2]:\n    x = i\n    break\nreturn x",
        "x = Thing(y=1)\nif unknown:\n    put(x)\nreturn x.y",
        "x = Thing(y=1)\nif unknown:\n    setattr(x, 'y', 2)\nreturn x.y",
        "x = Thing(y=1)\nsetattr(x, unknown, 2)\nreturn x.y",
        "return [i for i in [1, 2] if i > 1]",
        "return [i for i in unknown]",
        "return {**unknown}",
        "raise ValueError",
        "return 1 in [unknown]",
        "return 'a' * 10000000000",
        "x = 9\nreturn x * x * x * x * x * x * x * x * x * x * x * x * x * x * x * x * x * x",
        "x = {'a': 1}\nreturn x['b']",
        "return sorted([2, 1])",
        "x = 1\nreturn made_elsewhere(x)",
    ],
)
def test_what_cannot_be_known_is_unclear(tmp_path: Path, body: str) -> None:
    assert follow(tmp_path, body) is UNCLEAR


def test_a_list_that_may_have_grown_is_unclear(tmp_path: Path) -> None:
    made = follow(tmp_path, "x = Thing(y=[1], z=1)\nif unknown:\n    x.y.append(2)\nreturn x")
    assert isinstance(made, Configured)
    assert made.plain() == {"y": UNCLEAR, "z": 1}


@pytest.mark.parametrize(
    "body",
    ["return made() + made() + made()", "for i in many:\n    made()"],
)
def test_what_has_no_end_ends(tmp_path: Path, body: str) -> None:
    text = "def made():\n    many = [1, 2, 3]\n    " + body.replace("\n", "\n    ") + "\n"
    recipes = Recipes(None)
    with pytest.raises(InputError, match="too long a text to follow"):
        recipes.called(recipes.read(tmp_path / "made.py", text), "made")


def test_a_configuration_inside_itself_ends(bridge: Path) -> None:
    assert "too long a text to follow" in wrong(bridge, recipe("cfg.model.whole = cfg"))


def test_an_exported_file_that_was_changed_is_refused_for_what_it_is(tmp_path: Path) -> None:
    text = "from megatron.bridge import GPTModelProvider\nFIELDS = {\n    'model': 3,\n    'model.num_layers': 2,\n}\n"
    told = wrong(tmp_path, text)
    assert "seq_length: is not clear" in told


def test_a_constant_of_itself_ends(tmp_path: Path) -> None:
    recipes = Recipes(None)
    with pytest.raises(InputError, match="too long a text to follow"):
        recipes.called(recipes.read(tmp_path / "made.py", "A = B\nB = A\ndef made():\n    return A\n"), "made")


NANO = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
MODULES = """cfg.model.mtp_num_layers = 2
cfg.model.mtp_hybrid_override_pattern = "*E"
cfg.model.mtp_use_repeated_layer = True
cfg.model.expert_model_parallel_size = 8"""


@pytest.mark.parametrize(
    ("more", "modules"),
    [(MODULES, (2, "*E", 1)), (MODULES.replace("= 2", "= None"), (0, "*E", 0)), ("", (0, None, 0))],
)
def test_modules_of_multi_token_prediction_that_a_recipe_adds(
    more: str, modules: tuple[int, str | None, int], bridge: Path
) -> None:
    """As perf_recipes/nemotronh of 067f987 make Nemotron 3.5 Lightning of Nemotron 3 Nano."""
    model = read(bridge, recipe(more).replace("meta-llama/Meta-Llama-3-8B", NANO)).model
    assert (model.mtp_layers, model.mtp_pattern, model.mtp_weights) == modules


@pytest.mark.parametrize("name", [NANO, "nvidia/Nemotron-H-8B-Base-8K", "nvidia/NVIDIA-Nemotron-3.5-Lightning-X"])
def test_the_vocabulary_is_that_of_nemotrons_tokenizer(name: str, bridge: Path) -> None:
    hybrid = HYBRID.replace('tokenizer_type = "NullTokenizer"', f'tokenizer_model = "{name}"')
    text = "from megatron.core.activations import squared_relu\n" + recipe(hybrid.rpartition("\n")[0])
    text = text.replace("cfg = _common()", "cfg = _common()\n    cfg.tokenizer = TokenizerConfig()")
    assert read(bridge, text).model.vocab == 131_072


@pytest.mark.parametrize(
    ("more", "graph"),
    [
        ("", None),
        ('cfg.model.cuda_graph_impl = "transformer_engine"\ncfg.model.cuda_graph_scope = ["attn"]', "te"),
        ('cfg.model.cuda_graph_impl = "full_iteration"\ncfg.model.cuda_graph_scope = []', "full"),
        ('cfg.model.cuda_graph_impl = "local"\ncfg.model.cuda_graph_scope = ["full_iteration"]', "full"),
        ('cfg.model.cuda_graph_impl = "local"\ncfg.model.cuda_graph_modules = "full_iteration"', "full"),
        ('cfg.model.cuda_graph_impl = "none"\ncfg.model.cuda_graph_scope = ["full_iteration"]', None),
    ],
)
def test_graphs_are_those_of_the_recipe(more: str, graph: str | None, bridge: Path) -> None:
    assert read(bridge, recipe(more)).spec["training"].get("cuda_graph") == graph


MUON = """cfg.optimizer = OptimizerConfig(optimizer="dist_muon", muon_tp_mode="duplicated")
cfg.ddp.use_distributed_optimizer = False"""


def test_muon_is_read_with_its_options(bridge: Path) -> None:
    found = read(bridge, recipe(MUON))
    assert found.spec["training"]["optimizer"] == "muon"
    assert found.spec["training"]["muon_tp_mode"] == "duplicated"
    assert any(note.startswith("dist_muon without") for note in found.notes)
    assert "is not planned for" in wrong(
        bridge, recipe(MUON.replace('"duplicated"', '"blockwise", muon_num_ns_steps=7'))
    )


@pytest.mark.parametrize(("at_end", "told"), [(1, False), (14, True)])
def test_many_layers_in_16_bits_are_told(at_end: int, told: bool, bridge: Path) -> None:
    """As perf_recipes of 067f987 leave 14 layers of Nemotron 3 Super out of nvfp4; one at either end is usual."""
    precise = f"""cfg.mixed_precision = MixedPrecisionConfig(bf16=True, fp8="e4m3", fp8_recipe="mxfp8")
cfg.mixed_precision.first_last_layers_bf16 = True
cfg.mixed_precision.num_layers_at_start_in_bf16 = 1
cfg.mixed_precision.num_layers_at_end_in_bf16 = {at_end}"""
    found = read(bridge, recipe(precise), chip="b200")
    assert found.spec["training"]["precision"] == "fp8"
    notes = [note for note in found.notes if "stay in 16 bits" in note]
    assert notes == (["15 layers at the ends stay in 16 bits: time is predicted too short"] if told else [])


@pytest.mark.parametrize(
    ("modules", "recomputed"),
    [("None", CORE), ("[]", ()), ('["layernorm", "mlp"]', ("layernorm", "mlp"))],
)
def test_an_empty_list_of_modules_has_nothing_recomputed(
    modules: str, recomputed: tuple[str, ...], bridge: Path
) -> None:
    """None alone stands for Megatron-Core's own choice (transformer_config.py)."""
    body = f'cfg.model.recompute_granularity = "selective"\ncfg.model.recompute_modules = {modules}'
    found = read(bridge, recipe(body)).strategy
    assert found is not None
    assert found.recompute == ("selective" if recomputed else "none",) * 2
    assert found.recompute_modules == (recomputed,) * 2


@pytest.mark.parametrize(("fp8", "expected"), [(', fp8="hybrid", fp8_recipe="mxfp8"', True), ("", None)])
def test_attention_in_8_bits_is_read_where_layers_are(fp8: str, expected: bool | None, bridge: Path) -> None:
    body = f"cfg.mixed_precision = MixedPrecisionConfig(bf16=True{fp8})\n"
    body += "cfg.mixed_precision.fp8_dot_product_attention = True"
    assert read(bridge, recipe(body), chip="b200").spec["training"].get("fp8_attention") == expected

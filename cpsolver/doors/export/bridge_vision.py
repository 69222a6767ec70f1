"""Megatron-Bridge's models with an encoder of images: the provider is the model's own, and the plan is set on it.

Which layers of an encoder feed the decoder, and where text and images meet, is the model's and no plan's: so the file
takes the provider that Megatron-Bridge makes of the model's configuration, and holds its sizes against the plan's.
Read in Megatron-Bridge 067f987: models/qwen_vl, recipes/qwen_vl, data/builders/mock_vlm_sft.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Any

from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

_CHECKED = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_query_groups": "kv_heads",
    "kv_channels": "head_dim",
    "vocab_size": "vocab",
}
"""Fields of a provider -> those of a model, which have to agree."""
_CHECKED_ENCODER = {
    "depth": "layers",
    "hidden_size": "hidden",
    "intermediate_size": "ffn",
    "num_heads": "heads",
    "patch_size": "patch",
    "temporal_patch_size": "frames",
    "spatial_merge_size": "merge",
}
"""The same of a provider's vision_config."""
_STEPS = {
    "qwen3_vl": "megatron.bridge.models.qwen_vl.qwen3_vl_step",
    "qwen2_5_vl": "megatron.bridge.training.vlm_step",
}
"""The module of each family's forward_step (scripts/training/recipe_metadata.py)."""


def unknown(problem: Problem, s: Strategy) -> Iterator[str]:
    """What of a plan with images its modules cannot run."""
    model, training = problem.model, problem.spec.training
    vision = model.vision
    if problem.encoder is None or vision is None:
        return
    if model.mtp_layers:
        yield say("Megatron-Bridge builds no multi-token prediction behind an encoder of images")
    if model.attention.kind == "mla":
        yield say("Megatron-Bridge builds no latent attention behind an encoder of images")
    if model.moe is not None and not all(map(model.has_experts, range(model.layers))):
        yield say("Megatron-Bridge builds experts in all layers behind an encoder of images, or in none")
    if training.cuda_graph not in (None, "none"):
        yield say(
            "training.cuda_graph is {cuda_graph}: its encoder has graphs with fields of their own",
            cuda_graph=training.cuda_graph,
        )
    if s.layers[0] < vision.deepstack:
        yield say(
            "{added} layers' images are added on the first stage, which has {layers} layers: Megatron-Bridge asserts "
            "as many",
            added=vision.deepstack,
            layers=s.layers[0],
        )


def sizes(problem: Problem) -> dict[str, Any]:
    """What the provider and its vision_config must have, by dotted name."""
    model, vision = problem.model, problem.model.vision
    assert vision is not None
    found = {name: getattr(model, own) for name, own in _CHECKED.items()}
    if model.moe is None:
        found["ffn_hidden_size"] = model.ffn
    else:
        found |= {"num_moe_experts": model.moe.experts, "moe_router_topk": model.moe.top_k}
        found["moe_ffn_hidden_size"] = model.moe.expert_ffn
    encoder = {f"vision_config.{name}": getattr(vision, own) for name, own in _CHECKED_ENCODER.items()}
    if vision.family == "qwen3_vl":
        encoder["vision_config.num_position_embeddings"] = vision.positions
    return {**found, **encoder}


def fields(problem: Problem, s: Strategy) -> Iterator[tuple[str, Any]]:
    """What is frozen, and how context-parallel ranks share the encoder's work."""
    images = problem.spec.training.images
    assert images is not None
    yield "model.freeze_language_model", False
    yield "model.freeze_vision_model", not images.trained
    yield "model.freeze_vision_projection", False
    if problem.model.vision is not None and problem.model.vision.family == "qwen3_vl":
        yield "model.vision_dp_when_cp", False
    if s.cp > 1:  # training/config.py asserts both
        yield "model.calculate_per_token_loss", True
        yield "ddp.average_in_collective", False


def provider_lines(problem: Problem) -> tuple[str, ...]:
    """Lines of model() and of the comparison of sizes."""
    return (f"SIZES = {sizes(problem)!r}", *_PROVIDER)


_PROVIDER = (
    "",
    "",
    "def model():",
    '    """The provider of the model in HF_MODEL: a folder with its config.json, or a name at Hugging Face."""',
    "    import os",
    "",
    "    from megatron.bridge import AutoBridge",
    "",
    "    return AutoBridge.from_hf_pretrained(os.environ['HF_MODEL']).to_megatron_provider(load_weights=False)",
    "",
    "",
    "def check(provider):",
    '    """End where the provider is of another model than the plan."""',
    "    wrong = []",
    "    for name, planned in SIZES.items():",
    "        found = provider",
    "        for step in name.split('.'):",
    "            found = getattr(found, step)",
    "        if found != planned:",
    "            wrong.append(f'{name} is {found}, and {planned} in the plan')",
    "    if wrong:",
    "        raise SystemExit('another model than that of the plan: ' + '; '.join(wrong))",
)


def training_lines(problem: Problem) -> Iterator[str]:
    """Lines that train on made-up images of as many patches as the plan's, in as many of them a sequence."""
    images, vision = problem.spec.training.images, problem.model.vision
    assert images is not None and vision is not None and vision.family is not None  # noqa: PT018
    high, wide = _sides(images.patches // vision.merge**2)
    unit = vision.patch * vision.merge
    yield "    import os"
    yield ""
    yield "    from megatron.bridge.data.builders import MockVLMSFTDatasetConfig"
    yield f"    from {_STEPS[vision.family]} import forward_step"
    yield "    from megatron.bridge.recipes.common import _pretrain_common"
    yield "    from megatron.bridge.training.pretrain import pretrain"
    yield ""
    yield "    cfg = _pretrain_common()"
    yield "    cfg.model = model()"
    yield "    cfg.dataset = MockVLMSFTDatasetConfig("
    yield f"        seq_length={problem.sequence},"
    yield "        hf_processor_path=os.environ['HF_MODEL'],"
    yield f"        num_images={images.per_sequence},"
    yield f"        image_size=({wide * unit}, {high * unit}),"
    yield "        pad_to_max_length=True,"
    yield "    )"
    yield "    cfg.tokenizer.tokenizer_model = os.environ['HF_MODEL']"
    yield "    cfg.train.train_iters = 10"
    yield "    pretrain(config=configure(cfg), forward_step_func=forward_step)"


def _sides(tokens: int) -> tuple[int, int]:
    """The sides of the rectangle of so many tokens that is nearest to a square, the shorter first."""
    short = next(side for side in range(isqrt(tokens), 0, -1) if tokens % side == 0)
    return short, tokens // short


def notes(problem: Problem, s: Strategy) -> Iterator[str]:
    """What the prediction of a plan with images leaves out, and what is the user's to do."""
    vision = problem.model.vision
    assert vision is not None
    yield say("the model's sizes are checked and not set: HF_MODEL names its folder or its name at Hugging Face")
    yield say(
        "cfg.ddp.overlap_grad_reduce and overlap_param_gather are the plan's, and off in Megatron-Bridge's recipes: "
        "with sequences that have no images the encoder's gradients would be waited for"
    )
    if vision.family == "qwen2_5_vl" and s.tp > 1 and not problem.whole_encoder:
        yield say("the plan was timed with the encoder split over tp: `launcher: megatron-bridge` plans it as it runs")
    if vision.family == "qwen2_5_vl":
        yield say("the encoder is transformers' own module, whose kernels no run here has measured")
    elif "selective" in s.recompute:
        yield say(
            "the encoder's core attention is recomputed too, as selective recomputation is: not in the prediction"
        )

"""What Megatron itself does: parameters that a device of each stage holds, and the order of its schedule.

Builds the real GPTModel on torch's meta device, for every stage of a case, in a world of fake communication; and
reads Megatron's own schedule table. `python -m benchmarks.megatron` writes tests/cost/data/megatron.yaml, which tests
compare with the planner's numbers. Needs `pip install '.[real]'`; a CPU will do.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import megatron.core
import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.pipeline_parallel.schedules import get_pp_rank_microbatches, get_schedule_table
from megatron.core.transformer import TransformerConfig, multi_latent_attention
from megatron.core.transformer.transformer_config import MLATransformerConfig
from ruamel.yaml import YAML
from torch.testing._internal.distributed.fake_pg import FakeStore

from models_zoo import Architecture, load_architecture

RESULTS = Path(__file__).parent.parent / "tests" / "cost" / "data" / "megatron.yaml"
MADE_BY = "python -m benchmarks.megatron, on a CPU: GPTModel of every stage on the meta device, fake process groups"
SPEC = "megatron.core's local (not Transformer Engine's) layers; the low ranks' down projections whole on each rank"


@dataclass(frozen=True)
class Case:
    """A model cut into stages; `layers` by stage, each stage's shared evenly by its vpp chunks."""

    name: str
    model: str
    tp: int
    pp: int
    dp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    layers: tuple[int, ...] = ()

    @property
    def stages(self) -> tuple[int, ...]:
        """Layers of every stage, the even split where none is given."""
        return self.layers or (load_architecture(self.model).layers // self.pp,) * self.pp

    @property
    def layout(self) -> str:
        """Megatron's pipeline layout: letters of each chunk, all stages' first chunks first."""
        chunks = ["t" * (layers // self.vpp) for _ in range(self.vpp) for layers in self.stages]
        return "E" + "|".join(chunks) + "m" * load_architecture(self.model).mtp_layers + "L"


CASES = (
    Case("mha", "llama2-7b", tp=2, pp=4),
    Case("mha, one stage", "llama2-7b", tp=1, pp=1),
    Case("mha, interleaved", "llama2-7b", tp=2, pp=4, vpp=2),
    Case("mha, biases, positions, tied", "gpt3-175b", tp=8, pp=8),
    Case("tied, one stage", "gpt3-175b", tp=8, pp=1),
    Case("gqa", "llama2-70b", tp=8, pp=4),
    Case("gqa, uneven", "llama2-70b", tp=8, pp=4, layers=(19, 21, 22, 18)),
    Case("gqa, uneven, interleaved", "llama2-70b", tp=4, pp=8, vpp=2, layers=(8, 10, 12, 10, 12, 10, 10, 8)),
    Case("gqa, more tp than kv heads", "llama2-70b", tp=16, pp=4),
    Case("gqa, biased queries, padded vocabulary", "qwen2.5-7b", tp=4, pp=2),
    Case("gqa, biased queries, more tp than kv heads", "qwen2.5-72b", tp=16, pp=4),
    Case("gqa, normed queries", "qwen3-32b", tp=8, pp=4, vpp=4),
    Case("experts", "mixtral-8x22b", tp=2, pp=4, dp=4, ep=8),
    Case("experts split", "mixtral-8x22b", tp=4, pp=4, dp=2, ep=2, etp=4),
    Case("experts, normed queries", "qwen3-30b-a3b", tp=1, pp=2, dp=8, ep=8),
    Case("experts, normed queries, tp", "qwen3-235b-a22b", tp=4, pp=2, dp=8, ep=32, layers=(48, 46)),
    Case("mla, dense prefix, shared experts", "deepseek-v2-lite", tp=1, pp=3, dp=8, ep=8),
    Case("mla, dense prefix, shared experts, tp", "deepseek-v2-lite", tp=2, pp=2, dp=4, ep=8, layers=(14, 13)),
    Case("mla, low-rank queries, biased router, mtp", "deepseek-v3", 1, 16, dp=32, ep=32, layers=(3, *[4] * 14, 2)),
    Case("mla, interleaved", "deepseek-v2-236b", tp=2, pp=5, dp=4, vpp=2, ep=4, etp=2),
    Case("gqa, biased queries, experts, biased router, mtp", "glm4.5-air-106b-a12b", tp=2, pp=2, dp=4, ep=8),
)


class Whole(torch.nn.Linear):  # type: ignore[misc, unused-ignore]
    """Stands for Transformer Engine's linear layer with parallel_mode "duplicated": the whole weight on each rank."""

    def __init__(self, inputs: int, outputs: int, *, parallel_mode: str, **_others: Any) -> None:
        assert parallel_mode == "duplicated"
        super().__init__(inputs, outputs, bias=False)


class Core(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Stands for Transformer Engine's core attention, which has no parameters; the local one refuses MLA's widths."""

    def __init__(self, **_others: Any) -> None:
        super().__init__()


def count(case: Case) -> dict[str, list[int]]:
    """Of every stage, what its first rank holds: parameters, and elements of the routers' bias (a buffer)."""
    parameters, biases = [], []
    for stage in range(case.pp):
        with world(case, stage):
            chunks = [_model(case, stage, chunk) for chunk in range(case.vpp)]
        parameters.append(sum(p.numel() for model in chunks for p in model.parameters()))
        buffers = [b for model in chunks for name, b in model.named_buffers() if name.endswith("expert_bias")]
        biases.append(sum(buffer.numel() for buffer in buffers))
    return {"parameters": parameters, "router_bias": biases}


@contextmanager
def world(case: Case, stage: int) -> Iterator[None]:
    """Megatron's process groups as the first rank of a stage sees them; tensors live on the meta device."""
    size = case.tp * case.pp * case.dp
    rank = stage * size // case.pp
    torch.distributed.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=case.tp,
            pipeline_model_parallel_size=case.pp,
            virtual_pipeline_model_parallel_size=case.vpp if case.vpp > 1 else None,
            expert_model_parallel_size=case.ep,
            expert_tensor_parallel_size=case.etp,
            create_gloo_process_groups=False,
        )
        here, stay = torch.device("meta"), mock.patch("torch.Tensor.cuda", lambda tensor: tensor)
        with here, stay, mock.patch("torch.cuda.current_device", return_value=here):
            yield
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def _model(case: Case, stage: int, chunk: int) -> Any:
    arch = load_architecture(case.model)
    config = _config(arch, case)
    place = chunk if case.vpp > 1 else None
    norm = config.normalization
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=norm, vp_stage=place)
    unit = 128 * case.tp
    with mock.patch.object(multi_latent_attention, "TELinear", Whole):
        for layer in spec.layer_specs if arch.attention.kind == "mla" else ():
            inner = layer.submodules.self_attention.submodules
            inner.linear_q_down_proj = inner.linear_kv_down_proj = Whole
            inner.core_attention = Core
        return GPTModel(
            config,
            spec,
            mtp_block_spec=get_gpt_mtp_block_spec(config, spec, False, vp_stage=place) if arch.mtp_layers else None,
            vocab_size=-(-arch.vocab // unit) * unit,
            max_sequence_length=arch.max_positions or 4096,
            pre_process=stage == 0 and chunk == 0,
            post_process=stage == case.pp - 1 and chunk == case.vpp - 1,
            share_embeddings_and_output_weights=arch.tied_embeddings,
            position_embedding_type={"learned": "learned_absolute"}.get(arch.position, arch.position),
            vp_stage=place,
        )


def _config(arch: Architecture, case: Case) -> Any:
    make = MLATransformerConfig if arch.attention.kind == "mla" else TransformerConfig
    gelu = {"gelu": torch.nn.functional.gelu}
    return make(
        num_layers=arch.layers,
        hidden_size=arch.hidden,
        ffn_hidden_size=arch.ffn,
        num_attention_heads=arch.heads,
        num_query_groups=arch.kv_heads,
        kv_channels=arch.head_dim,
        gated_linear_unit=arch.gated_mlp,
        activation_func=gelu.get(arch.activation, torch.nn.functional.silu),
        normalization={"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[arch.norm],
        add_bias_linear=arch.bias_mlp,
        add_qkv_bias=arch.bias_qkv,
        mtp_num_layers=arch.mtp_layers or None,
        qk_layernorm=arch.attention.qk_norm is not None or arch.attention.kind == "mla",
        tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp,
        virtual_pipeline_model_parallel_size=case.vpp if case.vpp > 1 else None,
        expert_model_parallel_size=case.ep,
        expert_tensor_parallel_size=case.etp,
        pipeline_model_parallel_layout=case.layout if case.layers else None,
        pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16,
        perform_initialization=False,
        persist_layer_norm=False,
        masked_softmax_fusion=False,
        **_latent_fields(arch),
        **_expert_fields(arch),
    )


def _latent_fields(arch: Architecture) -> dict[str, Any]:
    attention = arch.attention
    if attention.kind != "mla":
        return {}
    return {
        "q_lora_rank": attention.q_lora,
        "kv_lora_rank": attention.kv_lora,
        "qk_head_dim": attention.qk_nope,
        "qk_pos_emb_head_dim": attention.qk_rope,
        "v_head_dim": attention.v_head,
        "rope_type": "rope",
    }


def _expert_fields(arch: Architecture) -> dict[str, Any]:
    moe = arch.moe
    if moe is None:
        return {}
    shared = moe.shared_experts * (moe.shared_ffn or moe.expert_ffn)
    return {
        "num_moe_experts": moe.experts,
        "moe_ffn_hidden_size": moe.expert_ffn,
        "moe_router_topk": moe.top_k,
        "moe_shared_expert_intermediate_size": shared or None,
        "moe_layer_freq": [int(arch.has_experts(layer)) for layer in range(arch.layers)],
        "moe_token_dispatcher_type": "allgather",  # dispatchers have no parameters; this one needs no CUDA stream
        "moe_router_enable_expert_bias": moe.router_bias,
        "moe_router_score_function": "sigmoid" if moe.router_bias else "softmax",
    }


@dataclass(frozen=True)
class Sizes:
    """Sizes of a schedule; group: microbatches that pass a chunk before the next chunk's turn."""

    pp: int
    vpp: int
    microbatches: int
    group: int


def sizes(number: int = 32, seed: int = 0) -> Iterator[Sizes]:
    """Random sizes that Megatron runs, the first few without interleaving."""
    draw = random.Random(seed)
    while number:
        pp, vpp = draw.randint(2, 8), draw.randint(2, 4) if number < 28 else 1
        m = draw.randint(1, 6 * pp)
        group = draw.randint(pp, max(pp, m)) if vpp > 1 else pp
        if vpp == 1 or (group <= m and (m % group == 0 or m % group >= pp)):
            number -= 1
            yield Sizes(pp, vpp, m, group)


def in_flight(case: Sizes) -> dict[str, list[int]]:
    """The most that each stage holds, of chunks that weigh 1 each; 1, 2, .. vpp; and vpp, .. 2, 1."""
    weights = {"live": [1] * case.vpp, "rising": [*range(1, case.vpp + 1)], "falling": [*range(case.vpp, 0, -1)]}
    held = [list(_held(case, stage)) for stage in range(case.pp)]
    return {
        name: [max(sum(w * n for w, n in zip(weight, mix, strict=True)) for mix in mixes) for mixes in held]
        for name, weight in weights.items()
    }


def _held(case: Sizes, stage: int) -> Iterator[tuple[int, ...]]:
    """Microbatches held of each chunk after each forward, in the order of Megatron's table and warm-up."""
    groups = SimpleNamespace(size=lambda: case.pp, rank=lambda: stage)
    chunks = case.vpp if case.vpp > 1 else None
    link: Any = SimpleNamespace(pp_group=groups, virtual_pipeline_model_parallel_size=chunks)
    numbers = get_pp_rank_microbatches(case.microbatches, case.vpp, case.group, p2p_communicator=link)
    table, warmup = get_schedule_table(case.microbatches, case.vpp, case.group), numbers[2]
    held = [0] * case.vpp
    for unit, (_, chunk) in enumerate(table):
        held[chunk] += 1
        yield tuple(held)
        if unit >= warmup:
            held[case.vpp - 1 - table[unit - warmup][1]] -= 1


def main() -> None:
    """Write what Megatron does in every case."""
    versions = {"megatron_core": megatron.core.__version__, "torch": str(torch.__version__)}
    found = {
        "provenance": {**versions, "date": datetime.date.today().isoformat(), "made_by": MADE_BY, "layers": SPEC},
        "stages": [{**asdict(case), "layers": list(case.stages), **count(case)} for case in CASES],
        "schedules": [{**asdict(case), **in_flight(case)} for case in sizes()],
    }
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = 120
    with RESULTS.open("w", encoding="utf-8") as file:
        yaml.dump(found, file)


if __name__ == "__main__":
    main()

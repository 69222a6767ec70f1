"""The spec's section `training`: what is trained in a step, and which techniques save memory or time in it.

docs/techniques.md says what each switch saves and costs, and by which flag a framework has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, WithJsonSchema

from cpsolver.profiles.switches import (
    Dispatcher,
    Fp8Recipe,
    GradientFusion,
    GraphScope,
    MuonTpMode,
    OffloadModule,
    OptimizerName,
    Precision,
    ZeroMemory,
)
from cpsolver.profiles.techniques import techniques
from hw_specs import BlockFormat

MOST = 1_048_576
"""The largest count that a spec may hold: 2**20."""
Count = Annotated[StrictInt, Field(ge=1, le=MOST)]
Number = Annotated[float, Field(strict=True)]
Name = Annotated[str, Field(min_length=1)]
OFFLOAD_MODULES: tuple[OffloadModule, ...] = OffloadModule.__args__  # type: ignore[attr-defined]


def _modules(value: Any) -> Any:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


_ONE = {"enum": list(OFFLOAD_MODULES)}
OffloadModules = Annotated[
    tuple[OffloadModule, ...],
    BeforeValidator(_modules),
    WithJsonSchema({"anyOf": [_ONE, {"type": "array", "items": _ONE}, {"type": "null"}]}),
]


class Part(BaseModel):
    """A section of the spec: frozen, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Target = Literal[
    "linear_qkv",
    "linear_q",
    "linear_k",
    "linear_v",
    "linear_proj",
    "linear_fc1",
    "linear_fc1_gate",
    "linear_fc1_up",
    "linear_fc2",
    "linear_q_proj",
    "linear_q_down_proj",
    "linear_q_up_proj",
    "linear_kv_down_proj",
    "linear_kv_up_proj",
]
"""A linear layer with an adapter, by Megatron-Bridge's names: LoRA's, and CanonicalLoRA's for parts of fused ones.

The last five are latent attention's.
"""
QuantizedBase = Literal["nf4", "nf4_double"]
"""Frozen weights in 4 bits (QLoRA); double: the blocks' constants are quantised too."""
_OF_OTHERS: Mapping[str, tuple[Target, ...]] = {
    "attention": ("linear_qkv", "linear_proj"),
    "mlp": ("linear_fc1", "linear_fc2"),
    "all": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    "q_proj": ("linear_q",),
    "k_proj": ("linear_k",),
    "v_proj": ("linear_v",),
    "o_proj": ("linear_proj",),
    "gate_proj": ("linear_fc1_gate",),
    "up_proj": ("linear_fc1_up",),
    "down_proj": ("linear_fc2",),
    "q_a_proj": ("linear_q_down_proj",),
    "q_b_proj": ("linear_q_up_proj",),
    "kv_a_proj_with_mqa": ("linear_kv_down_proj",),
    "kv_b_proj": ("linear_kv_up_proj",),
}
"""What NeMo 1 and PEFT call them."""
FUSED: tuple[Target, ...] = ("linear_qkv", "linear_fc1")
"""Layers whose parts may have adapters of their own instead."""
SPLIT: tuple[Target, ...] = ("linear_q", "linear_k", "linear_v", "linear_fc1_gate", "linear_fc1_up")
"""Those parts."""


def _targets(value: Any) -> Any:
    """Names of any vocabulary as Target's, each once."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return value
    found = [each for name in names for each in (_OF_OTHERS.get(name, (name,)) if isinstance(name, str) else (name,))]
    return tuple(dict.fromkeys(found)) if all(isinstance(each, str) for each in found) else tuple(found)


_NAME = {"enum": [*get_args(Target), *_OF_OTHERS]}
Targets = Annotated[
    tuple[Target, ...],
    BeforeValidator(_targets),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [_NAME, {"type": "array", "items": _NAME, "minItems": 1}]}),
]


class Lora(Part):
    """Low-rank adapters beside frozen linear layers, as Megatron-Bridge runs them."""

    rank: Count = Field(default=32, description="width of the adapters")
    targets: Targets = Field(
        default=("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
        description="linear layers with an adapter; PEFT's names are taken too",
    )
    dropout: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.0, description="dropout of the adapters' inputs: above 0 its masks and results are kept"
    )
    all_to_all: StrictBool = Field(
        default=False,
        description="results beside row-parallel layers go by all-to-all, not gathered (a2a_experimental)",
    )
    share_expert_adapters: StrictBool = Field(
        default=True, description="one adapter beside all experts of a layer; false: one beside each"
    )
    quantized_base: QuantizedBase | None = Field(
        default=None, description="QLoRA: frozen linear layers are held in nf4, or nf4_double; null: as they are used"
    )

    @property
    def of_parts(self) -> bool:
        """Parts of fused layers have adapters of their own: CanonicalLoRA."""
        return any(name in SPLIT for name in self.targets)


class Length(Part):
    """Sequences of one length in a histogram."""

    tokens: Count = Field(description="tokens of each")
    share: Annotated[Number, Field(gt=0)] = Field(
        description="how many sequences have it, relative to the other shares"
    )


Histogram = Annotated[tuple[Length, ...], Field(min_length=1)]


class Images(Part):
    """Images among the tokens of a sequence, for a model with an encoder of them."""

    per_sequence: Count = Field(description="images in a sequence, each of so many patches")
    patches: Count = Field(description="patches of an image that the encoder takes in, before they are joined")
    trained: StrictBool = Field(default=True, description="false: the encoder is frozen, its projector is not")


class Training(Part):
    """What is trained in a step, and how the layers are computed."""

    global_batch_size: Count = Field(description="sequences in one optimizer step")
    sequence_length: Count = Field(description="tokens in a sequence")
    precision: Precision = Field(default="bf16", description="type of the matrix products")
    dropout: StrictBool = Field(default=False, description="dropout is in use, and its masks are kept")
    fused_kernels: StrictBool = Field(
        default=True, description="fused norms, rotary embedding, bias and activation kernels"
    )
    expert_imbalance: Annotated[Number, Field(ge=1, le=64)] = Field(
        default=1.0, description="tokens at the experts of the most loaded device, relative to the mean"
    )
    expert_capacity_factor: Annotated[Number, Field(ge=1)] | None = Field(
        default=None, description="no device's experts take more than this times their even share; null: no limit"
    )
    optimizer: OptimizerName = Field(default="adam", description="what keeps which states; see docs/techniques.md")
    muon_tp_mode: MuonTpMode = Field(
        default="duplicated",
        description="muon: split matrices are orthogonalized whole on every rank, by all together, or each share alone",
    )
    release_fp32_gradients: StrictBool = Field(
        default=False, description="fp16: no fp32 copy of the gradients is kept (AscendSpeed --release-fp32-grad)"
    )
    reuse_fp32_parameters: StrictBool = Field(
        default=False, description="bf16: weights are half of their master (MindSpeed --reuse-fp32-param)"
    )
    optimizer_offload: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of the optimizer's states, and of its work, that the host has"
    )
    parameter_offload: StrictBool = Field(
        default=False,
        description="sharded weights wait on the host until they are gathered (DeepSpeed's offload_param)",
    )
    swap_optimizer: StrictBool = Field(
        default=False, description="the optimizer's states wait on the host between steps (MindSpeed --swap-optimizer)"
    )
    activation_offload: OffloadModules = Field(
        default=(), description="modules whose inputs wait on the host for the backward pass; null: none"
    )
    offload_layers: Annotated[StrictInt, Field(ge=0, le=MOST)] = Field(
        default=0, description="layers all of whose activations wait on the host (--cpu-offloading-num-layers)"
    )
    recompute_activation_function: StrictBool = Field(
        default=False,
        description="results of activation functions are made again when backward needs them (MindSpeed's flag)",
    )
    recompute_mla_up_proj: StrictBool = Field(
        default=False,
        description="latent attention's queries, keys and values are made again from their low ranks (MindSpeed)",
    )
    mla_swap_core_attn_out: StrictBool = Field(
        default=False,
        description="results of latent attention's core wait on the host, with DualPipeV (MindSpeed-LLM's flag)",
    )
    recompute_mlp_layers: Annotated[StrictInt, Field(ge=0, le=MOST)] = Field(
        default=0,
        description="layers, as many of each stage, that recompute feed-forward blocks (MindSpeed's swap-attention)",
    )
    distribute_saved_activations: StrictBool = Field(
        default=False,
        description="what recomputed layers keep is shared out over tensor-parallel ranks that all hold it (Megatron)",
    )
    cpu_checkpointing: StrictBool = Field(
        default=False, description="what recomputed layers keep waits on the host (DeepSpeed's cpu_checkpointing)"
    )
    moe_zero_memory: ZeroMemory | None = Field(
        default=None,
        description="experts' inputs and activations are made again: level0, level1 (MindSpeed's flag); null: kept",
    )
    triangle_attention: StrictBool = Field(
        default=False, description="attention without a flash kernel leaves masked blocks out (AscendSpeed)"
    )
    fused_gate_up: StrictBool = Field(
        default=True, description="gate and up projection are one product (mlp-layer-fusion); false: two"
    )
    moe_grouped_gemm: StrictBool = Field(
        default=True,
        description="one kernel for all experts of a device (--moe-grouped-gemm); false: one after another",
    )
    gradient_accumulation_fusion: GradientFusion | None = Field(
        default=None,
        description="products that add their weights' gradients up: none, dense, experts, all; null: as the stack does",
    )
    fp8_parameter_gather: StrictBool | None = Field(
        default=None,
        description="fp8, nvfp4: weights are held and gathered so only (--fp8-param-gather); null: as the stack does",
    )
    fp8_activations: StrictBool | None = Field(
        default=None,
        description="fp8, nvfp4: inputs of the layers' GEMMs are kept so too (Transformer Engine); null: as the stack",
    )
    fp8_recipe: Fp8Recipe | None = Field(
        default=None,
        description="fp8: what has a scale of its own, and from when; null: as the stack does on the chips",
    )
    fp8_attention: StrictBool | None = Field(
        default=None, description="fp8, nvfp4: attention's two products are in 8 bits too; null: as the stack does"
    )
    cuda_graph: GraphScope | None = Field(
        default=None,
        description="what CUDA graphs replay: none, te (parts of layers), full (iterations); null: as the stack does",
    )
    moe_dispatcher: Dispatcher | None = Field(
        default=None,
        description="how tokens reach experts: alltoall, allgather, deepep, hybridep; null: as the stack does",
    )
    expandable_segments: StrictBool | None = Field(
        default=None,
        description="the allocator's segments grow in place (expandable_segments:True); null: as the stack does",
    )
    lora: Lora | None = Field(
        default=None, description="low-rank adapters are trained and all else is frozen; null: all weights are trained"
    )
    lengths: Histogram | None = Field(
        default=None, description="how long sequences are; null: all have sequence_length tokens"
    )
    packing: StrictBool | None = Field(
        default=None,
        description="true, or null: sequences fill windows of sequence_length; false: each is padded to it",
    )
    images: Images | None = Field(
        default=None, description="images in the sequences, which the model's encoder takes; null: text alone"
    )
    tokens: Annotated[Number, Field(ge=1)] | None = Field(
        default=None, description="tokens of the whole training: reports say its days and dollars; null: not known"
    )

    @property
    def sharded_switch(self) -> str | None:
        """The switch, with its value, that works with a distributed optimizer only; None: there is no such one."""
        switches = {
            f"optimizer {self.optimizer}": techniques().optimizers[self.optimizer].sharded,
            "optimizer_offload": self.optimizer_offload > 0,
            "parameter_offload": self.parameter_offload,
            "swap_optimizer": self.swap_optimizer,
            "fp8_parameter_gather": self.fp8_parameter_gather is True,
        }
        return next((name for name, on in switches.items() if on), None)

    @property
    def packs(self) -> bool:
        """Several sequences share a window, and attend to themselves."""
        return self.lengths is not None and self.packing is not False

    @property
    def whole_matrices(self) -> bool:
        """The optimizer works on whole matrices, which replicas share out one by one."""
        return techniques().optimizers[self.optimizer].matrices

    @property
    def block_format(self) -> BlockFormat | None:
        """The format of scaled blocks that every chip must have for what the spec says."""
        if self.precision == "nvfp4":
            return "nvfp4"
        return "mx" if self.fp8_recipe == "mx" else None

    @property
    def recomputes_inside(self) -> bool:
        """Something inside every layer is dropped and made again, whatever the plan recomputes."""
        return self.recompute_activation_function or self.recompute_mla_up_proj or self.moe_zero_memory is not None

    @property
    def whole_layers_alone(self) -> bool:
        """What a plan recomputes is whole layers, by kind none or block, for a switch is at work inside them."""
        return self.recomputes_inside or self.mla_swap_core_attn_out

    @property
    def no_recomputation(self) -> bool:
        """A plan recomputes nothing, for a switch says what becomes of layers' activations."""
        return self.offload_layers > 0 or self.recompute_mlp_layers > 0

    @property
    def host_link(self) -> bool:
        """Whether something travels between device and host in every step."""
        return (
            self.optimizer_offload > 0
            or self.parameter_offload
            or self.swap_optimizer
            or bool(self.activation_offload)
            or self.offload_layers > 0
            or self.mla_swap_core_attn_out
            or self.cpu_checkpointing
        )

"""A spec with its names resolved: architecture, chips, stack and the derived sizes. No solver here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from cpsolver.inputs.language import later
from cpsolver.problem.network import ClusterNetwork
from cpsolver.problem.packing import Windows, windows_of
from cpsolver.profiles.constants import ConstantLayer, Overlay, replacements
from cpsolver.profiles.default_stack import NAMED
from cpsolver.profiles.framework import Framework, load_launcher
from cpsolver.profiles.stack import FOLD3D_STACK, Stack
from cpsolver.profiles.switches import FP8_RECIPES, GRAPH_SCOPES, SENT_ONCE, Dispatcher, GraphScope, Recipe
from cpsolver.profiles.techniques import techniques
from cpsolver.spec.spec import Spec
from cpsolver.spec.training import Lora
from hw_specs import Chip
from models_zoo import Architecture, encoder_of
from models_zoo.vision import EncoderFamily


def encoder_family(spec: Spec, model: Architecture | None) -> EncoderFamily | None:
    """The family of the encoder that the spec's images go through; None without images, or where it has no name."""
    vision = None if model is None else model.vision
    return None if vision is None or spec.training.images is None else vision.family


@dataclass(frozen=True)
class Supply:
    """One chip type of the cluster and the most devices of it that a plan may use."""

    chip: Chip
    limit: int

    @property
    def name(self) -> str:
        """The chip's name."""
        return self.chip.name


@dataclass(frozen=True)
class Problem:
    """All that planning needs. Sizes are counts; `capacity_bytes` is what a plan may fill on each chip type.

    `launcher` is what the launcher of the spec runs and the stack's framework too, None where that is anything.
    The spec names its stack, also where the user's did not: `stack_why` says why it is this one.
    `overlay`: what the user's own runs taught, which chips and stack have taken in already; it tells intervals.
    """

    spec: Spec
    model: Architecture
    supplies: tuple[Supply, ...]
    stack: Stack
    launcher: Framework | None = None
    overlay: Overlay | None = None
    stack_why: str = NAMED

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: without what was worked out, which goes by objects of this process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def repeats_keys(self) -> bool:
        """Where more ranks exchange heads than a rank has of keys and values, the launcher repeats these."""
        return self.launcher is not None and self.launcher.ulysses_repeats

    @property
    def exchanges_selected(self) -> bool:
        """Where an indexer selects keys, the launcher exchanges heads too; else they are gathered only."""
        return self.launcher is not None and self.launcher.ulysses_indexer

    @property
    def named_launcher(self) -> Framework | None:
        """The launcher that the spec names: `launcher` without what the stack adds."""
        if self.stack.runs is None:
            return self.launcher
        name = self.spec.launcher
        return None if name is None else load_launcher(name).beside(encoder_family(self.spec, self.model))

    @cached_property
    def network(self) -> ClusterNetwork | None:
        """The network around the chips' fast domains; None: one non-blocking level, each chip's own adapter."""
        return ClusterNetwork.of(self.spec.cluster)

    @property
    def num_gpus(self) -> int:
        """Devices that a plan uses: all of them, or with `may_idle` the most."""
        return self.spec.cluster.num_gpus

    @property
    def may_idle(self) -> bool:
        """A plan may leave whole nodes idle."""
        return self.spec.cluster.idle or self.spec.search.objective == "fewest_chips"

    def of_size(self, devices: int) -> Problem:
        """The problem with so many devices, all of which a plan uses; the same object for the same number."""
        if devices == self.num_gpus:
            return self
        if devices not in self._of_size:
            supplies = tuple(replace(supply, limit=min(supply.limit, devices)) for supply in self.supplies)
            self._of_size[devices] = self.with_(cluster={"num_gpus": devices, "idle": False}, supplies=supplies)
        return self._of_size[devices]

    def of_model(self, model: Architecture) -> Problem:
        """The problem with another model; the same object for the same one."""
        if model is self.model:
            return self
        found = self._of_model.get(id(model))
        if found is None or found.model is not model:
            found = self._of_model[id(model)] = replace(self, model=model)
        return found

    @cached_property
    def _of_model(self) -> dict[int, Problem]:
        return {}

    @cached_property
    def _of_size(self) -> dict[int, Problem]:
        return {}

    @cached_property
    def worked_out(self) -> dict[object, object]:
        """What was worked out of the problem, by whatever asks for it: for those who would work it out again."""
        return {}

    def with_(
        self, *, search: Mapping[str, Any] | None = None, cluster: Mapping[str, Any] | None = None, **fields: Any
    ) -> Problem:
        """The problem with values of its spec's sections, and `fields` of its own, replaced; nothing is looked up."""
        sections = {"search": search or {}, "cluster": cluster or {}}
        changed = {name: getattr(self.spec, name).model_copy(update=dict(new)) for name, new in sections.items() if new}
        made = replace(self, **{"spec": self.spec.model_copy(update=changed), **fields})
        if not fields and set(cluster or ()) <= {"memory_margin"}:  # what plans take is the same
            made.__dict__["worked_out"] = self.worked_out
        return made

    def with_constants(self, *layers: ConstantLayer) -> Problem:
        """The problem with layers of constants over its own, in order; an overlay also tells intervals from then on."""
        supplies, stack, overlay = self.supplies, self.stack, self.overlay
        for layer in layers:
            supplies = tuple(replace(supply, chip=layer.chip(supply.chip)) for supply in supplies)
            stack = layer.stack(stack)
            overlay = layer if isinstance(layer, Overlay) else overlay
        return replace(self, supplies=supplies, stack=stack, overlay=overlay)

    def sizes(self) -> dict[str, Any]:
        """What a plan is for, as answers in JSON name it: the model, the devices, the batch, the precision."""
        return {
            "model": self.model.name,
            "num_gpus": self.num_gpus,
            "gpus_per_node": self.node,
            "chips": {supply.name: supply.limit for supply in self.supplies},
            "global_batch_size": self.batch,
            "sequence_length": self.sequence,
            "precision": self.spec.training.precision,
        }

    @property
    def node(self) -> int:
        """Devices in a node."""
        return self.spec.cluster.gpus_per_node

    @property
    def batch(self) -> int:
        """Sequences in one optimizer step."""
        return self.spec.training.global_batch_size

    @property
    def sequence(self) -> int:
        """Tokens in a sequence."""
        return self.spec.training.sequence_length

    @cached_property
    def windows(self) -> Windows:
        """What sequences of the spec's lengths make of the `sequence` tokens that the model takes in as one."""
        return windows_of(self.spec.training)

    @property
    def useful_tokens(self) -> float:
        """Tokens of an optimizer step that are no padding."""
        return self.batch * self.sequence * self.windows.useful

    @property
    def lora(self) -> Lora | None:
        """The adapters that are trained beside frozen weights; None: all weights are trained."""
        return self.spec.training.lora

    @property
    def mixed(self) -> bool:
        """More than one chip type is on offer."""
        return len(self.supplies) > 1

    @property
    def memory_margin(self) -> float:
        """Share of each device's memory that a plan leaves free: the spec's, or the stack's where it names none."""
        told = self.spec.cluster.memory_margin
        return float(self.stack.memory_margin) if told is None else told

    @cached_property
    def recipe(self) -> Recipe | None:
        """How the layers' GEMMs are scaled: as the spec says, or as the stack does on these chips; None: in 16 bits."""
        training, stack = self.spec.training, self.stack
        if training.precision != "fp8":
            return "nvfp4" if training.precision == "nvfp4" else None
        scaled = all("mx" in supply.chip.block_formats for supply in self.supplies)
        usual = stack.fp8_recipe_of_blocks if scaled else stack.fp8_recipe
        return training.fp8_recipe or FP8_RECIPES[int(usual)]

    @property
    def one_weight_copy(self) -> bool:
        """One narrow copy of a weight serves forward and backward: with one scale a tensor, where GEMMs read it either
        way round on every chip."""
        return self.recipe in ("delayed", "current") and all(each.chip.fp8_either_way for each in self.supplies)

    @property
    def narrow_activations(self) -> bool:
        """Inputs of the layers' GEMMs are kept in the recipe's bits: as the spec says, or as the stack does."""
        given = self.spec.training.fp8_activations
        return self.recipe is not None and (bool(self.stack.fp8_activations) if given is None else given)

    @property
    def fp8_attention(self) -> bool:
        """Attention's two products are in 8 bits: as the spec says, or as the stack does; blockwise scaling has none
        (TransformerEngine d0067d0, common/recipe/__init__.py)."""
        given = self.spec.training.fp8_attention
        usual = bool(self.stack.fp8_attention)
        return self.recipe not in (None, "blockwise") and (usual if given is None else given)

    @property
    def element_bytes(self) -> int:
        """Of a value that is kept, moved or sent between kernels: 2, or 4 where the training is in fp32."""
        return 4 if self.spec.training.precision == "fp32" else 2

    @property
    def dispatch_bytes(self) -> float:
        """Of a value on its way to the experts; as the layers compute where that is in 16 bits or more."""
        return float(self.element_bytes if self.recipe is None else self.stack.dispatch_bytes)

    @property
    def narrow_weights(self) -> bool:
        """Weights are held and gathered in the recipe's bits only: as the spec says, or as the stack does."""
        given = self.spec.training.fp8_parameter_gather
        usual = bool(self.stack.fp8_parameter_gather)
        return self.recipe is not None and (usual if given is None else given)

    @property
    def cuda_graph(self) -> GraphScope:
        """What CUDA graphs replay: as the spec says, or as the stack does."""
        return self.spec.training.cuda_graph or GRAPH_SCOPES[int(self.stack.cuda_graph_scope)]

    @property
    def fused_kernels(self) -> bool:
        """Norms, rotary embeddings, biases and activation functions are fused kernels: as the spec says, unless the
        stack has none."""
        return self.spec.training.fused_kernels and not self.stack.eager_layers

    @property
    def fused_experts(self) -> bool:
        """Experts' activation is computed as their products write their results: with graphs of the whole iteration and
        blocks that the matrix units scale, where the stack does so."""
        return bool(self.stack.fused_experts) and self.cuda_graph == "full" and self.recipe in ("mx", "nvfp4")

    @property
    def copies_once(self) -> bool:
        """A token goes once to each rank and node with experts of it."""
        return self.dispatcher in SENT_ONCE

    @property
    def gathers_tokens(self) -> bool:
        """All tokens of the ranks that share experts out go to all of these."""
        return self.dispatcher == "allgather"

    @property
    def dispatcher(self) -> Dispatcher:
        """How tokens reach their experts: as the spec says, or as the stack does."""
        usual: Dispatcher = "deepep" if self.stack.copies_once_per_node else "alltoall"
        return self.spec.training.moe_dispatcher or usual

    def gradient_sum_bytes(self, of_experts: bool) -> float:
        """Memory traffic of adding up the gradient of a weight after its product, or of one of the experts': none where
        the product does it."""
        given, usual = self.spec.training.gradient_accumulation_fusion, float(self.stack.gradient_sum_bytes)
        if given is None:
            return usual
        grouped = of_experts and self.spec.training.moe_grouped_gemm
        fused = given in ("all", "experts" if grouped else "dense")
        return 0.0 if fused else usual or float(techniques().unfused_sum_bytes)

    @property
    def expandable_segments(self) -> bool:
        """The allocator's segments grow in place: as the spec says, or as the stack's runs have it."""
        given = self.spec.training.expandable_segments
        return bool(self.stack.expandable_segments) if given is None else given

    @property
    def sharded_switch(self) -> str | None:
        """The spec's or the stack's switch that works with a distributed optimizer only; None: there is none."""
        own = later("fp8_parameter_gather of stack {stack}", stack=self.stack.name)
        return self.spec.training.sharded_switch or (own if self.narrow_weights else None)

    @property
    def recompute_by_stage(self) -> bool:
        """Stages of one chip type may recompute differently: the spec asks for it and the launcher can tell them."""
        per_stage = self.launcher is None or self.launcher.recompute_per_chip
        return self.spec.search.recompute_scope == "stage" and per_stage

    @cached_property
    def encoder(self) -> Problem | None:
        """The model's encoder of images as a problem of its own, its sequences the patches of an image, all of which
        attend to all; None where no images are trained on."""
        images, model = self.spec.training.images, encoder_of(self.model)
        if images is None or model is None:
            return None
        training = self.spec.training.model_copy(update={"sequence_length": images.patches, "images": None})
        constants = self.stack.constants.model_copy(update=replacements({"causal_fraction": 1}))
        spec, stack = (
            self.spec.model_copy(update={"training": training}),
            self.stack.model_copy(update={"constants": constants}),
        )
        return replace(self, spec=spec, model=model, stack=stack)

    @property
    def whole_encoder(self) -> bool:
        """Each tensor-parallel rank has the encoder of images whole, as the launcher builds it; else they split it."""
        launcher = self.named_launcher
        return self.encoder is not None and launcher is not None and launcher.whole_encoder

    @property
    def degrees_by_chip(self) -> bool:
        """Chip types may have degrees of their own: the spec asks for it, or its launcher runs that.

        Searched for throughput on all devices; with prices, devices that may idle, Muon, or an encoder of images,
        degrees are equal.
        """
        search = self.spec.search
        known = self.launcher is not None and self.launcher.degrees_by_chip
        wanted = known if search.degrees_by_chip is None else search.degrees_by_chip
        able = self.mixed and not self.spec.training.whole_matrices and self.encoder is None
        return wanted and able and search.objective == "throughput" and not self.may_idle

    @property
    def has_dynamic_micro_batches(self) -> bool:
        """Whether the launcher has microbatches of different sizes, or without one the stack's framework."""
        return self.stack.name == FOLD3D_STACK if self.launcher is None else self.launcher.dynamic_micro_batches

    @property
    def chip_names(self) -> tuple[str, ...]:
        """Names of the chip types, in the spec's order."""
        return tuple(supply.name for supply in self.supplies)

    def supply(self, name: str) -> Supply:
        """The supply of that chip name; raises KeyError."""
        for supply in self.supplies:
            if supply.name == name:
                return supply
        raise KeyError(name)

    def capacity_bytes(self, chip: Chip) -> float:
        """Device memory less the margin that the plan keeps free."""
        return chip.memory_capacity_bytes * (1.0 - self.memory_margin)

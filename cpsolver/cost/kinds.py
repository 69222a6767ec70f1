"""Layers of several kinds in one model: which there are, and how many of each a pipeline stage holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add

import numpy as np

from cpsolver.cost.shard import Floats, Ints
from cpsolver.problem.problem import Problem
from models_zoo import Architecture
from models_zoo.schema import Mixer


@dataclass(frozen=True)
class LayerKind:
    """What one layer differs in from others of the same model.

    `experts` or a dense block, if it has a `feed_forward` at all; what mixes its tokens, and for attention whether over
    the whole sequence or a window. `branches`: residual additions one after another, one where attention and
    feed-forward stand side by side or a layer is one block alone. `compression`: tokens to a key beyond the window, 0
    for none there; `selects`: an indexer selects among the keys, and the layer itself `scores` them or takes the choice
    of one before it. `made_of`: the kinds of its blocks and how many of each, where a layer has more than one mixer and
    one feed-forward block; of such a block `branches` is 0 where it adds to the residual what another's norm gave it.
    """

    experts: bool
    full_attention: bool
    mixer: Mixer = "attention"
    feed_forward: bool = True
    branches: int = 2
    compression: int = 1
    selects: bool = False
    scores: bool = False
    made_of: tuple[tuple[LayerKind, int], ...] = ()

    @property
    def parts(self) -> tuple[tuple[LayerKind, int], ...]:
        """What a layer is made of: of most kinds, once itself."""
        return self.made_of or ((self, 1),)

    @property
    def attends(self) -> bool:
        """Attention mixes its tokens."""
        return self.mixer == "attention"

    @property
    def dense(self) -> bool:
        """It has a feed-forward block without experts."""
        return self.feed_forward and not self.experts


@lru_cache(maxsize=64)
def layer_kinds(model: Architecture) -> tuple[LayerKind, ...]:
    """The distinct kinds, the most common first."""
    each = [_kind(model, index) for index in range(model.layers)]
    return tuple(sorted(dict.fromkeys(each), key=lambda kind: -each.count(kind)))


@lru_cache(maxsize=64)
def kind_of_layers(model: Architecture) -> tuple[int, ...]:
    """For each layer the index of its kind in `layer_kinds`."""
    kinds = layer_kinds(model)
    return tuple(kinds.index(_kind(model, index)) for index in range(model.layers))


@lru_cache(maxsize=64)
def module_counts(model: Architecture) -> tuple[int, ...]:
    """For each of `layer_kinds`, layers of it in one module of multi-token prediction: one like the model's last, or
    those of the module's pattern."""
    of_layers, pattern = kind_of_layers(model), model.layer_pattern or ""
    own = [of_layers[pattern.index(letter)] for letter in model.mtp_pattern or ""] or [of_layers[-1]]
    return tuple(own.count(index) for index in range(len(layer_kinds(model))))


def of_module(model: Architecture, of_kinds: Floats) -> Floats:
    """The sum over the layers of one module of multi-token prediction of values (kinds, ...) of each kind."""
    return reduce(add, (count * each for count, each in zip(module_counts(model), of_kinds, strict=True)))


def kind_shares(model: Architecture) -> tuple[float, ...]:
    """Share of the layers that are of each kind."""
    each = kind_of_layers(model)
    return tuple(each.count(index) / model.layers for index in range(len(layer_kinds(model))))


def mean_of_kinds(model: Architecture, of_kinds: Floats) -> Floats:
    """The mean over the model's layers of values (kinds, ...) of each kind."""
    shares = kind_shares(model)  # one by one: a product of matrices would wake up as many threads as there are
    return reduce(add, (share * each for share, each in zip(shares, of_kinds, strict=True)))


def examples(model: Architecture) -> tuple[int, ...]:
    """For each kind the index of the first layer of it."""
    each = kind_of_layers(model)
    return tuple(each.index(kind) for kind in range(len(layer_kinds(model))))


@lru_cache(maxsize=512)
def counts_before(
    model: Architecture, vpp: int, embedding_slot: int = 0, loss_slot: int = 0, v_shaped: bool = False
) -> Ints:
    """Layers of each kind that stages hold whose chunks lie before the x-th place of a chunk-wide pipeline.

    Places are the layers, and before and behind them those of `Strategy.slots`. All stages together have C =
    places // vpp in each of `vpp` rounds; a stage with those from a to b of each C holds counts[:, b] - counts[:, a].
    `v_shaped`: in the second of two rounds from b to a, counted from the model's end. Shape (kinds, C + 1).
    """
    ones = np.equal.outer(np.arange(len(layer_kinds(model))), np.array(kind_of_layers(model))).astype(np.int64)
    ones = np.pad(ones, ((0, 0), (embedding_slot, loss_slot)))
    long = ones.shape[1] // vpp
    rounds = ones[:, : long * vpp].reshape(len(ones), vpp, long)
    if v_shaped:
        rounds = np.stack([rounds[:, 0], rounds[:, 1, ::-1]], axis=1)
    by_chunk = rounds.sum(axis=1)
    return np.concatenate([np.zeros((len(ones), 1), dtype=np.int64), by_chunk.cumsum(axis=1)], axis=1)


def repeats_from(counts: Ints, period: int) -> int:
    """The place from which on, to the last one, every layer is of the kind of that `period` places before it, as
    `counts_before` counts them."""
    layers = np.diff(counts, axis=1)
    others = np.nonzero((layers[:, period:] != layers[:, :-period]).any(axis=0))[0]
    return int(others[-1]) + 1 if len(others) else 0


def later_counts_before(model: Architecture, slots: tuple[int, int]) -> Ints:
    """Of a V: by how many layers of each kind the second chunks before the x-th place exceed the first ones.

    As `counts_before` counts both chunks of its rounds: (kinds, C + 1).
    """
    both, in_order = counts_before(model, 2, *slots, v_shaped=True), counts_before(model, 1, *slots)
    return both - 2 * in_order[:, : both.shape[1]]


def over_parts(kind: LayerKind, each: Callable[[LayerKind], Floats]) -> Floats:
    """The sum of something over all that a layer of that kind is made of."""
    return reduce(add, (count * each(part) for part, count in kind.parts))


def model_of(model: Architecture, kind: LayerKind) -> Architecture:
    """The model as if all of its layers had the widths of that kind's: the same object where all have."""
    own = model.attention.owns_widths and kind.attends and kind.full_attention
    return _of_full_layers(model) if own else model


@lru_cache(maxsize=64)
def _of_full_layers(model: Architecture) -> Architecture:
    attention = model.attention
    heads = {
        "head_dim": attention.global_head_dim or model.head_dim,
        "kv_heads": attention.global_kv_heads or model.kv_heads,
    }
    alone = attention.model_copy(update={"sliding_window": None, "full_every": None})
    return model.model_copy(update={**heads, "attention": alone})


def problem_of(problem: Problem, kind: LayerKind) -> Problem:
    """The problem with the model of that kind's widths."""
    return problem.of_model(model_of(problem.model, kind))


def norms(model: Architecture, kind: LayerKind) -> int:
    """Norms of a layer beside those inside its mixer: one where layers are one block alone, none in `made_of`'s
    blocks that take another's."""
    if not kind.branches:
        return 0
    return 1 if model.layer_pattern is not None else model.norms_per_layer


_PAIR = LayerKind(experts=False, full_attention=True)
_SHORTCUT = LayerKind(
    experts=True,
    full_attention=True,
    made_of=((_PAIR, 2), (LayerKind(experts=True, full_attention=True, mixer="none", branches=0), 1)),
)


def _kind(model: Architecture, index: int) -> LayerKind:
    if model.moe is not None and model.moe.shortcut:
        return _SHORTCUT
    mixer = model.mixer(index)
    fully = mixer != "attention" or model.attends_fully(index)
    one_block = model.layer_pattern is not None or model.norms_per_layer == 1
    return LayerKind(
        experts=model.has_experts(index),
        full_attention=fully,
        mixer=mixer,
        feed_forward=model.has_feed_forward(index),
        branches=1 if one_block else 2,
        compression=model.compression_of(index),
        selects=mixer == "attention" and model.has_indexer(index),
        scores=mixer == "attention" and model.scores_keys(index),
    )

"""Facts that few frameworks state: the last fields of `Facts`, whose defaults rule nothing out."""

from __future__ import annotations

from typing import Any

from cpsolver.profiles.facts import Facts, sharded_in_short
from cpsolver.profiles.judging import fact, negated
from models_zoo import Architecture


@fact("variant")
def _plain_tensor(f: Facts, m: Architecture, x: Any) -> Any:
    yield (
        f.plain_tensor | x.sequence_parallel | (x.tp == 1),
        lambda: f"has tensor parallelism with sequence parallelism only: tp is {x.tp}",
    )


_WHOLE_WEIGHTS = "shares out weights over replicas (distributed_optimizer true, dp x cp > 1)"


@fact(
    "variant",
    about="distributed_optimizer",
    briefly=lambda f: sharded_in_short(f) if f.plain_weights else _WHOLE_WEIGHTS,
)
def _plain_weights(f: Facts, m: Architecture, x: Any) -> Any:
    message = "shares out weights over replicas: distributed_optimizer must be true"
    yield (
        f.plain_weights | x.distributed_optimizer,
        lambda: message + ", and there is a single replica" * (x.dp * x.cp == 1),
    )


@fact("variant", about="distributed_optimizer", briefly="needs sharded replicas with pp or ep > 1")
def _plain_beside(f: Facts, m: Architecture, x: Any) -> Any:
    yield (
        f.plain_beside | x.distributed_optimizer | (x.dp == 1) | ((x.pp == 1) & (x.ep == 1)),
        lambda: f"needs sharded replicas with pp {x.pp}, ep {x.ep}, dp {x.dp}: distributed_optimizer must be true",
    )


_LONG_ONLY = "interleaves with pp > 2 and two microbatches for each stage (vpp 1 else)"


@fact("frame", about="vpp", briefly=lambda f: _LONG_ONLY * (f.interleaving and not f.short_interleaving))
def _short_interleaving(f: Facts, m: Architecture, x: Any) -> Any:
    needs, short = "interleaves with two microbatches for each stage or more", x.microbatches < 2 * x.pp
    yield f.short_interleaving | (x.vpp == 1) | (x.pp > 2), lambda: f"interleaves with pp > 2 only: pp is {x.pp}"
    yield (
        f.short_interleaving | (x.vpp == 1) | negated(short),
        lambda: f"{needs}: {x.microbatches} microbatches are fewer than 2 x pp {x.pp}",
    )


@fact("variant", about="ep", briefly="has experts over whole tensor-parallel groups (tp divides ep)")
def _experts_split_tensor(f: Facts, m: Architecture, x: Any) -> Any:
    yield (
        f.experts_split_tensor | (x.ep == 1) | (x.ep % x.tp == 0),
        lambda: f"has experts over whole tensor-parallel groups: ep {x.ep} is no multiple of tp {x.tp}",
    )

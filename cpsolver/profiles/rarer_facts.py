"""Facts that few frameworks state: the last fields of `Facts`, whose defaults rule nothing out."""

from __future__ import annotations

from typing import Any

from cpsolver.inputs.language import later, say
from cpsolver.profiles.facts import Facts
from cpsolver.profiles.judging import fact, negated
from cpsolver.profiles.sharing_facts import sharded_in_short
from models_zoo import Architecture


@fact("variant")
def _plain_tensor(f: Facts, m: Architecture, x: Any) -> Any:
    yield (
        f.plain_tensor | x.sequence_parallel | (x.tp == 1),
        lambda: later("has tensor parallelism with sequence parallelism only: tp is {x.tp}", x=x),
    )


_WHOLE_WEIGHTS = later("shares out weights over replicas (distributed_optimizer true, dp x cp > 1)")


@fact(
    "variant",
    about="distributed_optimizer",
    briefly=lambda f: sharded_in_short(f) if f.plain_weights else say(_WHOLE_WEIGHTS),
)
def _plain_weights(f: Facts, m: Architecture, x: Any) -> Any:
    message = later("shares out weights over replicas: distributed_optimizer must be true")
    alone = later("shares out weights over replicas: distributed_optimizer must be true, and there is a single replica")
    yield f.plain_weights | x.distributed_optimizer, lambda: alone if x.dp * x.cp == 1 else message


@fact("variant", about="distributed_optimizer", briefly=later("needs sharded replicas with pp or ep > 1"))
def _plain_beside(f: Facts, m: Architecture, x: Any) -> Any:
    yield (
        f.plain_beside | x.distributed_optimizer | (x.dp == 1) | ((x.pp == 1) & (x.ep == 1)),
        lambda: later(
            "needs sharded replicas with pp {x.pp}, ep {x.ep}, dp {x.dp}: distributed_optimizer must be true", x=x
        ),
    )


_LONG_ONLY = later("interleaves with pp > 2 and two microbatches for each stage (vpp 1 else)")


@fact("frame", about="vpp", briefly=lambda f: say(_LONG_ONLY) if f.interleaving and not f.short_interleaving else "")
def _short_interleaving(f: Facts, m: Architecture, x: Any) -> Any:
    short = x.microbatches < 2 * x.pp
    yield (
        f.short_interleaving | (x.vpp == 1) | (x.pp > 2),
        lambda: later("interleaves with pp > 2 only: pp is {x.pp}", x=x),
    )
    yield (
        f.short_interleaving | (x.vpp == 1) | negated(short),
        lambda: later(
            "interleaves with two microbatches for each stage or more: {x.microbatches} microbatches are fewer than "
            "2 x pp {x.pp}",
            x=x,
        ),
    )


@fact("variant", about="ep", briefly=later("has experts over whole tensor-parallel groups (tp divides ep)"))
def _experts_split_tensor(f: Facts, m: Architecture, x: Any) -> Any:
    yield (
        f.experts_split_tensor | (x.ep == 1) | (x.ep % x.tp == 0),
        lambda: later("has experts over whole tensor-parallel groups: ep {x.ep} is no multiple of tp {x.tp}", x=x),
    )

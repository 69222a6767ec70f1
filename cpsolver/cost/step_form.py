"""What a step takes as the longest of sums over the stages' passes: chains of which each waits for the one before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cpsolver.cost.shard import Floats, Ints

PASS_PARTS = 6
"""What of a stage sums are made of: T (forward and backward), F and W of a microbatch through all of its chunks, and by
how much the same of its second chunk are longer than those of its first (nothing with one chunk)."""


_AS_LONG = 1e-6
"""Chains that differ by no more than that share are as long as each other."""


@dataclass(frozen=True)
class PipelineSizes:
    """Stages (pp), chunks of each (vpp), microbatches of a step, and whether forwards run `beside` backwards."""

    pp: int
    vpp: int
    microbatches: int
    beside: bool = False


@dataclass(frozen=True)
class StepForm:
    """Seconds of a step as the longest of sums over the stages' seconds of a microbatch, of which PASS_PARTS count.

    Attributes:
        microbatches: a step takes no less than each stage works on all of them.
        multiple: what coefficients are multiples of: times 1 / multiple.
        chains: of every stage's parts, (chains, pp, PASS_PARTS).
        further: of stages with such PASS_PARTS a chain that holds up their step, (pp, PASS_PARTS), None where it is not
            known: with all of these the form is the step itself. None: no others are looked for.
    """

    microbatches: int
    multiple: int
    chains: Ints
    further: Callable[[Floats], Ints | None] | None = None

    def step_s(self, parts: Floats) -> float:
        """Seconds of a step; `parts`: (PASS_PARTS, pp)."""
        return float(max(self._chains_s(parts).max(), self._works_s(parts).max()))

    def steps(self, parts: Ints) -> int:
        """Integer steps of a step, times `multiple`, from those of the parts."""
        works = self.multiple * self.microbatches * parts[0].max()
        return int(max(np.einsum("csp,ps->c", self.chains, parts).max(), works))

    def slowest(self, parts: Floats) -> int:
        """The stage that holds a step up most: with most of the longest chain, or that works longer than it takes."""
        works, chain = self._works_s(parts), self.chains[self._chains_s(parts).argmax()]
        of_chain = np.einsum("sp,ps->s", chain, parts) / self.multiple
        return int((works if works.max() >= of_chain.sum() else of_chain).argmax())

    def completed(self, parts: Floats) -> StepForm | None:
        """The form with the chain more that holds up a step of stages with these parts; None where it has one as long,
        and where that cannot be seen."""
        chain = None if self.further is None else self.further(parts)
        if chain is None:
            return None
        more = replace(self, chains=np.concatenate([self.chains, chain[None]]))
        return more if more.step_s(parts) > self.step_s(parts) * (1 + _AS_LONG) else None

    def _chains_s(self, parts: Floats) -> Floats:
        return np.asarray(np.einsum("csp,ps->c", self.chains, parts) / self.multiple)

    def _works_s(self, parts: Floats) -> Floats:
        return np.asarray(self.microbatches * parts[0])


def by_parts(passes: Ints) -> Ints:
    """Chains as coefficients, times 2, of PASS_PARTS, from how many F, B and W they have of every stage's chunks.

    `passes`: (.., pp, chunks, 3), one chunk or two. Of two the second takes half of all and half of what it is longer.
    """
    whole, later = passes.sum(axis=-2), passes[..., -1, :] - passes[..., 0, :]
    if passes.shape[-2] == 1:
        whole, later = 2 * whole, np.zeros_like(whole)
    return np.concatenate([_of_whole(whole), _of_whole(later)], axis=-1)


def _of_whole(passes: Ints) -> Ints:
    """Coefficients of F, B and W as those of T, F and W: B is T less these."""
    forward, inputs, weight = np.moveaxis(passes, -1, 0)
    return np.stack([inputs, forward - inputs, weight - inputs], axis=-1)


def seconds_of(parts: Floats, chunks: int) -> Floats:
    """Seconds of F, B and W of every stage's chunks, (pp, chunks, 3), of which stages have these PASS_PARTS."""
    whole, later = np.split(parts, 2)
    first = whole if chunks == 1 else (whole - later) / 2
    by_chunk = np.stack([first, whole - first][:chunks], axis=-1)
    of_all, forward, weight = by_chunk
    return np.stack([forward, of_all - forward - weight, weight], axis=-1)

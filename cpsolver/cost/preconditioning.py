"""SOAP: what its preconditioners of a matrix hold, and what a step of it takes.

For each side of a matrix SOAP keeps a Kronecker factor and its eigenbasis, both fp32 squares of that side, and runs
Adam in these bases. Megatron-LM (core_v0.19.0, core/optimizer/emerging_optimizers.py) takes each rank's share of a
matrix for a matrix of its own, queries, keys and values in one, and asks for KL-Shampoo's factors; a step refreshes the
bases by one product and one QR factorization of each side (Emerging-Optimizers v0.3.1, soap/soap.py, step). The counts
of products below are those that torch.utils.flop_counter finds in that code.
"""

from __future__ import annotations

import numpy as np

from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.matrix_steps import Matrix
from cpsolver.cost.shard import Floats, Shard
from cpsolver.problem.problem import Problem
from cpsolver.profiles.techniques import techniques
from hw_specs import Chip

_CUBES = 4
"""Products of squares of one side: the other factor's correction with the eigenvalues that it needs, the step of the
basis, and its eigenvalues."""
_PROJECTIONS = 6
"""Products of the matrix with a square of one side: two for the factors' updates; the momentum out of the old bases and
into the new, the gradient into these, and the update out of them."""


def factor_elements(matrix: Matrix) -> Floats:
    """Elements of the squares of one such matrix's sides, one square for each."""
    return matrix.rows**2 + matrix.columns**2


def preconditioning_seconds(problem: Problem, chip: Chip, _shard: Shard, matrix: Matrix) -> Floats:
    """A step of one such matrix. Matrices follow one another, and each factorization waits for its launch."""
    device, known = ChipSpeeds(problem, chip), techniques()
    rows, columns = matrix.rows, matrix.columns
    products = sum(_CUBES * device.fp32_gemm(side, side, side) for side in (rows, columns))
    projected = device.fp32_gemm(rows, columns, rows) + device.fp32_gemm(rows, columns, columns)
    factored = sum(_factorization(device, side) for side in (rows, columns))
    traffic = known.soap_own_bytes * matrix.elements + known.soap_factor_traffic_bytes * factor_elements(matrix)
    return np.asarray(products + _PROJECTIONS * projected + factored + device.stream(traffic, known.soap_kernels))


def _factorization(device: ChipSpeeds, side: Floats) -> Floats:
    """QR of a square with its basis made whole: 8/3 of its cube in FLOP, and what each takes to launch."""
    known = techniques()
    return np.asarray(8.0 / 3.0 * side**3 / (known.soap_qr_speed * device.fp32_rate) + 1e-3 * known.soap_qr_ms)

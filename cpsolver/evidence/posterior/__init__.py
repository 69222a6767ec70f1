"""What a user's own runs teach: a posterior over the few constants that differ from cluster to cluster.

Imports from evaluation and what stands before it. scipy is optional: memory_posterior alone loads it.
"""

from __future__ import annotations

from importlib.util import find_spec

from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say


def check_scipy(command: str) -> None:
    """Raises InputError where scipy is not installed, which the posterior of memory needs."""
    if find_spec("scipy") is None:
        raise InputError(Trouble(command, say("needs scipy: pip install 'apss-cp[{command}]'", command=command)))

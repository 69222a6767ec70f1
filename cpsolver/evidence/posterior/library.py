"""The library that the inference needs, which not everyone has installed."""

from __future__ import annotations

from cpsolver.inputs.errors import InputError, Trouble


def check_scipy(command: str) -> None:
    """Raises InputError where scipy, which the inference needs, is not installed."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        raise InputError(Trouble(command, f"needs scipy: pip install 'apss-cp[{command}]'")) from None

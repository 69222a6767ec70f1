"""Plans compiled into a CP-SAT model: data, variables, constraints, objective, model. OR-tools lives here only.

Imports from bounds and what search may import.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType


def _load_solver() -> None:
    """Import OR-tools' models without pandas, which they name in type hints and for series of variables alone: nothing
    here has any, and pandas takes a quarter of a second that every solve would pay. Where it is loaded already, or
    where a release of OR-tools needs more of it, all is imported as usual.
    """
    name = "pandas"
    if name not in sys.modules:
        stand_in = ModuleType(name)
        stand_in.Index = stand_in.Series = type("Unused", (), {})  # type: ignore[attr-defined]
        sys.modules[name] = stand_in
        try:
            import ortools.sat.python.cp_model
        except Exception:  # whatever it is that the release asks pandas for: the import below says what is missing
            sys.modules.pop("ortools.sat.python.cp_model", None)
        finally:
            del sys.modules[name]
    import ortools.sat.python.cp_model  # noqa: F401


def _load_out_of_reach() -> None:
    """The same in a thread, which Ctrl-C does not reach: it would be lost in the parts of OR-tools that are C++, or
    come out of them as an ImportError. It is raised here, once all is loaded.
    """
    with ThreadPoolExecutor(1) as threads:
        threads.submit(_load_solver).result()


_load_out_of_reach()

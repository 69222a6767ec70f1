"""Why a problem has no plan: the cause with numbers, the plan that comes closest, changes that make one possible.

Imports from search and what stands before it.
"""

from cpsolver.explanation.cause import Explanation, explanation

__all__ = ["Explanation", "explanation"]

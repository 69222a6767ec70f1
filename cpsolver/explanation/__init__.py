"""What is to be said of a problem: what to run; why it has no plan, and changes that make one possible or better.

Imports from search and what stands before it.
"""

from cpsolver.explanation.cause import Explanation, explanation

__all__ = ["Explanation", "explanation"]

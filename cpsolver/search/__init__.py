"""The engine: candidates, bounds that prune with proof, CP-SAT, and the answer.

Imports from rules, evaluation, cost and what stands before them.
"""

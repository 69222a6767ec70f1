"""Plans compiled into a CP-SAT model: data, variables, constraints, objective, model. OR-tools lives here only.

Imports from bounds and what search may import.
"""

"""Published measured runs: the table's schema, from a row to a problem and a plan, predictions and their errors.

Imports from rules and what stands before it, and the intervals beside it.
"""

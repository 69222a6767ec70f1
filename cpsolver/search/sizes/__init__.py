"""Microbatches of different sizes, as a decision: the sequences of them, and the best plan with each.

May import all that `search` may, but OR-tools.
"""

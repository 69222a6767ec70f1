"""The judge: a plan becomes numbers with a breakdown that adds up. Knows nothing of the search.

Imports from cost and what stands before it.
"""

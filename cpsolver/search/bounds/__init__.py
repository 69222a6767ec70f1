"""Lower bounds on step time for thousands of rows at once.

Imports from cost and what stands before it, and the candidates of search; never from compile.
"""

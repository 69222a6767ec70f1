"""Plans whose chip types have degrees of their own: rows of each mesh, bounds on their combinations, the search.

Imports from the rest of search but for search.py, which calls it.
"""

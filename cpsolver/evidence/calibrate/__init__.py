"""From a table of a user's own runs to an overlay: rows as evidence, leaving each out, what speaks against them.

Imports from posterior and runs beside it, and what evidence may import.
"""

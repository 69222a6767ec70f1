"""A spec with its names resolved; plans in files; which rank stands where.

Imports from spec and what stands before it.
"""

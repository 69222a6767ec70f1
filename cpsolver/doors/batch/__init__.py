"""Sweeps: many specs from one file, solved in parallel, kept one by one in a database, resumed where they stopped.

Imports from the rooms before the doors, and from report.
"""

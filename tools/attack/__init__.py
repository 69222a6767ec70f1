"""Attacks on the planner: its answers against every plan there is, its answers against each other, its doors against
hostile inputs. `make attack` runs them at night; CONTRIBUTING.md says how to read what they print.

Nothing here is shared with the search or with the tests' brute force, so that one mistake cannot stand on both sides.
"""

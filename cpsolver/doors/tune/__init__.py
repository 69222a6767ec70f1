"""Trials on the user's own cluster: a chooser names a plan, the user's command runs it, the log says how long it took.

Imports from the rooms before the doors, from report, and from export, whose targets it launches. The supervisor of a
trial imports this package and nothing heavy: keep it empty.
"""

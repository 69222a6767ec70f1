"""Trials on the user's own cluster: a chooser names a plan, the user's command runs it, the log says how long it took.

The supervisor of a trial imports this package and nothing heavy: keep it empty.
"""

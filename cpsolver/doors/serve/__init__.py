"""The page of a plan with its spec beside it, to edit and to plan again: served to this machine's own browser only.

Imports from `spec`, `problem` and what comes before them, and from report. How a problem is planned is given to it.
"""

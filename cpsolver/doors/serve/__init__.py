"""The page of a plan with its spec beside it, to edit and to plan again: served to this machine's own browser only.

Imports from `problem` and what comes before it. How a problem is planned, and how the page is made, is given to it.
"""

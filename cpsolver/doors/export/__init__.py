"""From a plan to what a training framework needs to run it: arguments, environment, files.

Imports from the rooms before the doors, and from report.
"""

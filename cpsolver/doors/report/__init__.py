"""Ways to show a plan to people and to other tools: every module here reads results and decides nothing.

Imports from the rooms before the doors, and from no other door.
"""

"""What the user writes: the sections of a spec, its pins and bans, and a starter.

Imports from inputs, plans and profiles.
"""

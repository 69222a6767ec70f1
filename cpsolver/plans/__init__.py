"""What a plan is: decisions only, no numbers.

Imports from inputs only.
"""

"""What frameworks run, what stacks cost, and the constants fitted to runs: facts and figures with their sources.

Imports from inputs and plans, and the catalogues.
"""

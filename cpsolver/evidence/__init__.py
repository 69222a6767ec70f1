"""What measured runs say: the runs themselves, intervals, the posterior over constants, calibration.

Imports from evaluation and what stands before it; never from search.
"""

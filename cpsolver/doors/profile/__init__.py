"""Measures a device's operators with PyTorch and makes a chip file of the catalogue's schema from them.

shapes.py says what to measure for a model, plan.py in which order and within which time, device.py and timing.py how a
device is timed, operators.py, attention.py, collectives.py and layer.py what runs on it, journal.py keeps every
measurement on disk, figures.py makes efficiencies of them, predicted.py holds the cost model against them, chip_file.py
writes. PyTorch is imported within the functions that need it.

Imports from the rooms before the doors, and from report.
"""

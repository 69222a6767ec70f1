"""Measures the operators of a device with PyTorch, and makes a chip file of the catalogue's schema of them.

`shapes` lists the tasks for a model, and `budget` runs them in order within a time. `measure`, `attention`,
`collectives` and `layer` hold what runs on the device, which `device` describes and times. `journal` keeps every
measurement on disk. `efficiencies` turns measurements into efficiencies, `compare` holds them against the catalogue and
the cost model, and `chip_file` writes them. PyTorch is imported only within the functions that need it.

Imports from the rooms before the doors, and from report.
"""

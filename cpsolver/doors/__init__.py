"""Where things come in and go out: reports, exports, imports, device profiles, sweeps and trials.

Each may import from all rooms before it, and from report, which only renders.
"""

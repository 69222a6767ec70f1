"""A report as one HTML file that needs nothing else: no network, no fonts, a little script that it can do without.

Imports from report and what it may import.
"""

"""Timing of whole workloads."""

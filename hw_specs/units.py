"""The only unit conversions of the project. Inside all is SI: bytes, seconds, FLOP and their quotients.

GB is a decimal gigabyte, GiB a binary one; they differ by 7 %.
"""

from __future__ import annotations

GB = 1e9
GIB = 2**30
MIB = 2**20
TERA = 1e12
MICROSECOND = 1e-6


def gb_to_bytes(gigabytes: float) -> float:
    """Decimal gigabytes to bytes."""
    return gigabytes * GB


def gib_to_bytes(gibibytes: float) -> float:
    """Binary gibibytes to bytes."""
    return gibibytes * GIB


def mib_to_bytes(mebibytes: float) -> float:
    """Binary mebibytes to bytes."""
    return mebibytes * MIB


def bytes_to_gib(count: float) -> float:
    """Bytes to binary gibibytes."""
    return count / GIB


def gb_s_to_bytes_s(gigabytes_per_second: float) -> float:
    """GB/s (decimal, as data sheets give bandwidth) to bytes/s."""
    return gigabytes_per_second * GB


def gbit_s_to_bytes_s(gigabits_per_second: float) -> float:
    """Gb/s (as network adapters are sold) to bytes/s."""
    return gigabits_per_second * GB / 8


def tflops_to_flops(teraflops: float) -> float:
    """TFLOP/s to FLOP/s."""
    return teraflops * TERA


def microseconds_to_seconds(microseconds: float) -> float:
    """Microseconds to seconds."""
    return microseconds * MICROSECOND

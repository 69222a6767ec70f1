"""Measurements for tests of `apss-cp profile` that need no PyTorch."""

from __future__ import annotations

from cpsolver.doors.profile.efficiencies import rounds
from cpsolver.doors.profile.request import ProfileOptions, resolve_request
from cpsolver.doors.profile.task import Measurement, MeasurementSet, Size
from cpsolver.problem.problem import Problem

DEVICE = {"device": "NVIDIA H100 80GB HBM3", "kind": "cuda", "driver": "CUDA 12.8", "torch": "2.9.0"}


def asked(**changed: object) -> ProfileOptions:
    usual = {
        "model": "llama2-7b",
        "seq": 4096,
        "tp": "1,2",
        "micro_batch": "1",
        "precision": None,
        "peak_tflops": None,
        "replaces": None,
        "devices": None,
        "quick": False,
    }
    return ProfileOptions(**(usual | changed))  # type: ignore[arg-type]


def problem(**changed: object) -> Problem:
    return resolve_request(asked(**changed)).problem


def gemm(m: int, n: int, k: int, seconds: float, precision: str = "bf16") -> Measurement:
    size: Size = {"m": m, "n": n, "k": k, "batch": 1, "precision": precision, "product": "forward"}
    return Measurement("gemm", size, (seconds,) * 5, day="2026-11-22")


def attention(kind: str, sequence: int, seconds: float) -> Measurement:
    size: Size = {"batch": 1, "heads": 32, "sequence": sequence, "keys": 128, "values": 128, "precision": "bf16"}
    return Measurement(f"attention_{kind}", size, (seconds,) * 5, note="flash kernel")


def memory(kernel: str, bytes_: int, seconds: float) -> Measurement:
    return Measurement("memory", {"kernel": kernel, "bytes": bytes_}, (seconds,) * 5)


def collective(name: str, payload: int, seconds: float, group: int = 8) -> Measurement:
    size: Size = {"collective": name, "group": group, "payload": payload}
    return Measurement("collective", size, (seconds,) * 5)


def collective_seconds(name: str, payload: int, bandwidth: float, half: float, latency: float, group: int = 8) -> float:
    """The cost model's formula, written out."""
    moved = payload + min(payload, half)
    return latency * rounds(name) / 2 + rounds(name) * (group - 1) / group * moved / bandwidth


def measured(*found: Measurement) -> MeasurementSet:
    return MeasurementSet(found, provenance=dict(DEVICE))

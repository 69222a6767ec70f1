"""The numbers that tests/cost/test_model_flops.py compares with are those of the installed Megatron-LM."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.real.megatron_flops import COUNTED, counts


def _source() -> Path | None:
    """training.py of the checkout in MEGATRON_LM, or of this interpreter's megatron.training."""
    if "MEGATRON_LM" in os.environ:
        return Path(os.environ["MEGATRON_LM"]) / "megatron" / "training" / "training.py"
    package = find_spec("megatron.training") if find_spec("megatron") else None
    return None if package is None or package.origin is None else Path(package.origin).with_name("training.py")


def test_the_formula_gives_what_is_kept_of_it() -> None:
    path = _source()
    if path is None or not path.exists():
        pytest.skip("no megatron.training here: name a checkout by MEGATRON_LM")
    kept = json.loads(COUNTED.read_text(encoding="utf-8"))["flop_of_a_token"]
    assert counts(path.read_text(encoding="utf-8")) == pytest.approx(kept, rel=1e-9)

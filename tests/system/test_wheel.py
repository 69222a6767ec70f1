"""The built wheel works on its own: modules, data files, entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source, target = folder / "source", folder / "site"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


def test_it_plans_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    training = "{global_batch_size: 64, sequence_length: 4096}"
    spec = "{model: llama2-7b, cluster: {num_gpus: 8, chips: a100}, training: " + training + "}"
    (tmp_path / "spec.yaml").write_text(spec, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "cli", "solve", "spec.yaml", "--json"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["status"] == "optimal"


@pytest.mark.parametrize("package", ["cpsolver", "hw_specs", "models_zoo"])
def test_it_ships_every_data_file(installed: Path, package: str) -> None:
    here, there = (
        {path.relative_to(root) for ending in ("*.yaml", "*.csv") for path in (root / package).rglob(ending)}
        for root in (ROOT, installed)
    )
    assert len(here) > 10
    assert here == there

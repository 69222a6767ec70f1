"""The built wheel works on its own: modules, data files, entry point, and the library as docs/python.md has it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

pytestmark = pytest.mark.full

PACKAGES = ("cpsolver", "hw_specs", "models_zoo")


def working_tree(target: Path) -> None:
    """A copy of what the checkout holds now: what git tracks or could, as it is, committed or not."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source, target = folder / "source", folder / "site"
    working_tree(source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


def run(installed: Path, command: list[str], folder: Path) -> str:
    """What a command prints that has the wheel and not the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_plans_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    training = "{global_batch_size: 64, sequence_length: 4096}"
    spec = "{model: llama2-7b, cluster: {num_gpus: 8, chips: a100}, training: " + training + "}"
    (tmp_path / "spec.yaml").write_text(spec, encoding="utf-8")
    script = str(installed / "bin" / "apss-cp")
    told = run(installed, [sys.executable, script, "solve", "spec.yaml", "--json"], tmp_path)
    assert json.loads(told)["status"] == "optimal"


def test_it_speaks_chinese_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    script = str(installed / "bin" / "apss-cp")
    asked = ["plan", "llama2-7b", "--on", "a100:8", "--batch", "64", "--seq", "4096", "--lang", "zh"]
    told = run(installed, [sys.executable, script, *asked], tmp_path)
    assert "建议运行" in told
    assert "Run this" not in told


def example() -> str:
    """The program of docs/python.md."""
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text("utf-8"), flags=re.DOTALL)
    return str(program)


def test_the_example_of_the_library_runs(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(example(), encoding="utf-8")
    told = run(installed, [sys.executable, "example.py"], tmp_path)
    assert re.search(r"^plan 1: \d\.\d{3} s, [\d,]+ tokens/s, MFU \d+\.\d%$", told, flags=re.MULTILINE)
    assert re.search(r"^data_parallel: ", told, flags=re.MULTILINE)
    assert "\nlegal\nwithout search.pin.pp = 8: " in told
    assert "\ntrain.sh train.sh " in told
    assert "did you mean 'llama2-7b'" in told
    assert (tmp_path / "launch" / "train.sh").is_file()


@pytest.mark.full
def test_the_example_of_the_library_is_typed(installed: Path, tmp_path: Path) -> None:
    """mypy, strict, sees the installed package as a user's own code does."""
    (tmp_path / "example.py").write_text(example() + "\nreveal_type(r.best.mfu)\n", "utf-8")
    for package in PACKAGES:
        shutil.copytree(installed / package, tmp_path / package)
    silent = "[mypy-cpsolver.*,hw_specs.*,models_zoo.*]\nfollow_imports = silent\n"  # as of what is installed
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = true\n{silent}", encoding="utf-8")
    known = ROOT / ".mypy_cache"
    if known.is_dir():  # of the standard library and of what the package needs, where `make lint` has looked at them
        shutil.copytree(known, tmp_path / "cache")
    mypy = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "example.py"]
    told = run(installed, mypy, tmp_path)
    assert 'Revealed type is "float"' in told.replace("builtins.float", "float")


def test_it_ships_every_data_file_and_no_module_beside_the_packages(installed: Path) -> None:
    for package in PACKAGES:
        here, there = (
            {str(path.relative_to(root)) for ending in ("*.yaml", "*.csv", "py.typed") for path in root.rglob(ending)}
            for root in (ROOT / package, installed / package)
        )
        assert here
        assert here == there
    assert not list(installed.glob("*.py"))

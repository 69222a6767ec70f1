"""Files of the package: read once, checked against their schema, wrong ones told with their place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from cpsolver.inputs.data import package_data, package_schema
from cpsolver.inputs.errors import InputError


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    least: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Numbers:
    least: float


def _file(folder: Path, text: str) -> Path:
    path = folder / "data.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read_once(tmp_path: Path) -> None:
    path = _file(tmp_path, "least: 1.5\n")
    first = package_data(path)
    path.write_text("least: 2.5\n", encoding="utf-8")
    assert package_data(path) is first
    assert first == {"least": 1.5}


def test_a_schema_is_a_model_or_a_dataclass(tmp_path: Path) -> None:
    path = _file(tmp_path, "least: 1.5\n")
    assert package_schema(path, _Model) == _Model(least=1.5)
    assert package_schema(path, _Numbers) == _Numbers(1.5)
    assert package_schema(path, _Model) is package_schema(path, _Model)


def test_wrong_values_and_unknown_keys_are_told_with_their_place(tmp_path: Path) -> None:
    path = _file(tmp_path, "# a comment\nleast: many\nmost: 2\n")
    with pytest.raises(InputError) as caught:
        package_schema(path, _Model)
    assert [(trouble.where, trouble.line, trouble.file) for trouble in caught.value.troubles] == [
        ("least", 2, str(path)),
        ("most", 3, str(path)),
    ]


def test_what_is_no_yaml_is_told_with_its_place(tmp_path: Path) -> None:
    path = _file(tmp_path, "least: 1\nmost: [2\n")
    with pytest.raises(InputError) as caught:
        package_data(path)
    assert caught.value.troubles[0].file == str(path)
    assert caught.value.troubles[0].line is not None

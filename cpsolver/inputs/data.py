"""The one reader of the YAML files that come with the package: each is parsed once, and checked where it has a schema.

A file that is wrong is a fault of the package, but says where it is wrong as a user's own file does: line and column.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, validation_trouble

T = TypeVar("T")


@cache
def package_data(path: Path) -> Any:
    """The plain values in a file; every caller gets the same object, so copy before you change it.

    Raises InputError with the place of what is no YAML.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except YAMLError:
        return load_yaml(path).data  # which says where; slower, as it notes the place of every value


def package_schema(path: Path, schema: type[T]) -> T:
    """The file as a pydantic model or a dataclass. Raises InputError with the place of each wrong value."""
    if (path, schema) not in _CHECKED:
        _CHECKED[path, schema] = _checked(path, schema)
    found: T = _CHECKED[path, schema]
    return found


_CHECKED: dict[tuple[Path, type[Any]], Any] = {}


def _checked(path: Path, schema: type[T]) -> T:
    data = package_data(path)
    try:
        return TypeAdapter(schema).validate_python(data)
    except ValidationError as error:
        document = load_yaml(path)
        troubles = [validation_trouble(detail, data, lambda _: {}) for detail in error.errors()]
        raise InputError(document.in_order(troubles)) from None

"""The JSON Schema of a spec, with the names of the catalogues, for editors that complete and check what is written."""

from __future__ import annotations

from typing import Any

from cpsolver.profiles.framework import launcher_names
from cpsolver.profiles.stack import stack_names
from cpsolver.spec.spec import Spec
from hw_specs import chip_names, network_names
from models_zoo import list_architectures

SCHEMA_FILE = "apss-cp.schema.json"
"""The file beside a spec in which the spec's first line has editors look."""
SCHEMA_LINE = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"


def spec_json_schema() -> dict[str, Any]:
    """The JSON Schema of what `load_spec` accepts, short forms included; every field has a description.

    Launchers and stacks are those that there are. Models and chips may be a user's own, so that their names only
    complete: the catalogue's, and for models the repositories on Hugging Face that the catalogue knows.
    """
    schema = Spec.model_json_schema()
    search = schema["$defs"]["Search"]["properties"]
    spots = ((search, "pin", "Decisions"), (search, "forbid", "Decisions"))
    for place, name, defined in (*spots, (schema["properties"], "search", "Search")):
        place[name] = {key: item for key, item in place[name].items() if key not in ("$ref", "allOf")}
        place[name]["anyOf"] = [{"$ref": f"#/$defs/{defined}"}, {"type": "null"}]
    cluster = schema["$defs"]["Cluster"]["properties"]
    by_name = cluster["chips"]["anyOf"][-1]
    schema["$defs"]["ChipRequest"] = by_name["additionalProperties"]  # once, not beside every chip's name
    by_name["additionalProperties"] = {"$ref": "#/$defs/ChipRequest"}
    _name_all(schema["properties"], cluster)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "apss-cp spec"}


def _name_all(fields: dict[str, Any], cluster: dict[str, Any]) -> None:
    """Put the names that there are into the fields of a spec and of its cluster."""
    for field, known in (("launcher", launcher_names()), ("stack", stack_names())):
        fields[field]["anyOf"] = [{"enum": list(known)}, {"type": "null"}]
    architectures = list_architectures()
    models = [arch.name for arch in architectures]
    models += [repository for arch in architectures for repository in arch.hugging_face]
    fields["model"]["anyOf"].insert(0, {"enum": models})
    chips = list(chip_names())
    one, several, by_name = cluster["chips"]["anyOf"]
    several["items"] = {"anyOf": [{"enum": chips}, several["items"]]}
    by_name["properties"] = dict.fromkeys(chips, by_name["additionalProperties"])
    cluster["chips"]["anyOf"] = [{"enum": chips}, one, several, by_name]
    names = [{"enum": list(network_names())}, {"type": "string", "minLength": 1}]
    cluster["network"]["anyOf"] = [*names, *cluster["network"]["anyOf"]]
    prices = next(form for form in cluster["prices"]["anyOf"] if form["type"] == "object")
    prices["properties"] = dict.fromkeys(chips, prices["additionalProperties"])

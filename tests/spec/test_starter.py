import json
import re
from collections.abc import Iterator
from typing import Any

from cpsolver.inputs.document import parse_yaml
from cpsolver.inputs.language import CHINESE, speaking
from cpsolver.profiles.techniques import techniques
from cpsolver.spec.cluster import Cluster
from cpsolver.spec.json_schema import SCHEMA_LINE, spec_json_schema
from cpsolver.spec.search import Decisions, Search
from cpsolver.spec.spec import Spec, parse_spec
from cpsolver.spec.starter import starter_spec
from cpsolver.spec.training import OFFLOAD_MODULES, Training


def test_the_starter_is_a_valid_spec_with_every_default() -> None:
    spec = parse_spec(parse_yaml(starter_spec()).data)
    assert (spec.model, spec.search, spec.launcher) == ("llama2-70b", type(spec.search)(), None)
    sizes = ("global_batch_size", "sequence_length")
    assert spec.training == Training(**{name: getattr(spec.training, name) for name in sizes})
    parts = (Spec, Cluster, Training, Search, Decisions)
    for name in (name for part in parts for name in part.model_fields):
        assert re.search(rf"^ *(# )?{name}: ?", starter_spec(), re.MULTILINE), name


def test_the_starters_examples_are_valid_too() -> None:
    text = re.sub(r"^( +)# (\w+: )", r"\1\2", starter_spec(), flags=re.MULTILINE)
    spec = parse_spec(parse_yaml(text).data)
    assert None not in spec.search.pin.model_dump().values()
    assert spec.search.time_limit_s == 60


def test_in_chinese_the_starter_is_the_same_spec_with_other_comments() -> None:
    with speaking(CHINESE):
        chinese = starter_spec()
    lines = list(zip(starter_spec().splitlines(), chinese.splitlines(), strict=True))
    assert parse_yaml(chinese).data == parse_yaml(starter_spec()).data
    said = [line.rpartition("# ")[2] for english, line in lines if english != line]
    assert len(said) > 80
    assert all(re.search("[一-鿿]", text) for text in said)
    kept = [line.rpartition("# ")[2] for english, line in lines if english == line and "  # " in line]
    assert all(re.fullmatch(r"\w+: .*", text) for text in kept), kept  # examples of fields alone


def test_the_starter_names_every_optimizer_and_module() -> None:
    for name in (*techniques().optimizers, *OFFLOAD_MODULES):
        assert re.search(rf"[ \[]{name}[,;\]]", starter_spec()), name


def test_the_starter_quotes_odd_names() -> None:
    spec = parse_spec(parse_yaml(starter_spec(model="405", chips={"4090": None, "no: x": 8}, num_gpus=8)).data)
    assert spec.model == "405"
    assert {name: chip.max for name, chip in spec.cluster.chips.items()} == {"4090": None, "no: x": 8}


def described(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in (schema, *schema["$defs"].values()):
        yield from part.get("properties", {}).items()


def test_the_schema_describes_every_field_and_takes_the_short_forms() -> None:
    schema = spec_json_schema()
    assert [name for name, field in described(schema) if not field.get("description")] == []
    assert {*schema["required"]} == {"model", "cluster", "training"}
    assert {*schema["properties"]} == {*Spec.model_fields}
    chips = schema["$defs"]["Cluster"]["properties"]["chips"]["anyOf"]
    assert [form.get("type") for form in chips] == [None, "string", "array", "object"]
    pin = schema["$defs"]["Decisions"]["properties"]
    assert [form["type"] for form in pin["tp"]["anyOf"]] == ["integer", "array", "null"]
    assert {"object", "null"} <= {form.get("type") for form in pin["recompute"]["anyOf"]}
    json.dumps(schema)


def test_the_schema_names_what_the_catalogues_have() -> None:
    schema = spec_json_schema()
    models, chips = schema["properties"]["model"]["anyOf"][0]["enum"], schema["$defs"]["Cluster"]["properties"]["chips"]
    assert {"llama3.1-70b", "meta-llama/Llama-3.1-70B", "deepseek-ai/DeepSeek-V3"} <= set(models)
    assert {"h100", "ascend_910b"} <= set(chips["anyOf"][0]["enum"])
    assert "h100" in chips["anyOf"][-1]["properties"]
    assert "megatron-lm" in schema["properties"]["launcher"]["anyOf"][0]["enum"]
    assert "megatron-core" in schema["properties"]["stack"]["anyOf"][0]["enum"]
    assert schema["$defs"]["Training"]["properties"]["precision"]["enum"] == ["bf16", "fp16", "fp8", "nvfp4", "fp32"]


def test_the_line_that_names_the_schema_is_a_comment() -> None:
    assert parse_yaml(SCHEMA_LINE + starter_spec()).data == parse_yaml(starter_spec()).data

import io
import json
from pathlib import Path
from typing import Any

import pytest

from cpsolver.inputs import document as documents
from cpsolver.inputs.document import load_yaml, parse_yaml
from cpsolver.inputs.errors import InputError, Trouble, nearest_names


def fails(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, file="spec.yaml")
    return str(caught.value)


def test_yaml_1_2_scalars() -> None:
    text = (
        "flops: 989e12\nno: no\non: on\nb: true\nn:\noct: 0o17\ndec: 010\nhex: 0x1F\n"
        "t: 12:30\nd: 2001-01-01\nq: '5'\nneg: -1\ninf: -.inf\nsmall: 6.5e-6"
    )
    assert parse_yaml(text).data == {
        "flops": 989e12,
        "no": "no",
        "on": "on",
        "b": True,
        "n": None,
        "oct": 15,
        "dec": 10,
        "hex": 31,
        "t": "12:30",
        "d": "2001-01-01",
        "q": "5",
        "neg": -1,
        "inf": float("-inf"),
        "small": 6.5e-6,
    }


def test_keys_are_text() -> None:
    assert parse_yaml("4090: 8\nnull: 1\n").data == {"4090": 8, "null": 1}


def test_positions_count_from_one() -> None:
    document = parse_yaml("a: 1\nb:\n  c: [x, y]\n  d: {e: 2}\n")
    assert document.position(("a",)) == (1, 1)
    assert document.position(("b", "c")) == (3, 3)
    assert document.position(("b", "c", 1)) == (3, 10)
    assert document.position(("b", "d", "e")) == (4, 7)
    assert document.position(("b", "x")) is None
    assert document.position(("b", "c", 9)) is None
    assert document.nearest_position(("b", "x")) == (2, 1)


def test_a_key_that_stands_twice_is_where_it_stands_first() -> None:
    assert parse_yaml("a: 1\na: {b: 2}\n", collect=True).position(("a",)) == (1, 1)


def test_many_places_of_one_mapping_need_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, items = list[object](), documents._items

    def looked(node: object) -> Any:
        looks.append(node)
        return items(node)

    monkeypatch.setattr(documents, "_items", looked)
    document = parse_yaml("".join(f"k{number}: 1\n" for number in range(200)))
    troubles = [Trouble(f"k{number}", "wrong", path=(f"k{number}",)) for number in range(200)]
    assert [trouble.line for trouble in document.in_order(reversed(troubles))] == list(range(1, 201))
    assert len(looks) == 1


@pytest.mark.parametrize("number", ["9" * 1001, "0x" + "f" * 4000, "0o" + "7" * 5000, "0b" + "1" * 20_000])
def test_a_number_without_end_is_none(number: str) -> None:
    assert "cannot be read as int" in fails(f"a: {number}")


def test_numbers_that_python_does_not_write_are_shown() -> None:
    assert (
        str(Trouble("a", "wrong", 16**5000))
        == "a = 0x10000000000000000000000000...00000000000000000000000000000: wrong"
    )


def test_aliases_share_values() -> None:
    assert parse_yaml("a: &x {k: 1}\nb: *x\n").data == {"a": {"k": 1}, "b": {"k": 1}}


def test_json_also_with_tabs() -> None:
    data = {"model": "m", "cluster": {"chips": ["a"], "x": 1.5}}
    assert parse_yaml(json.dumps(data)).data == data
    assert parse_yaml(json.dumps(data, indent="\t")).data == data


def test_every_duplicate_key_is_listed() -> None:
    assert fails("a: 1\nb: {c: 1, c: 2}\na: 3\n") == (
        "spec.yaml:2:11 b.c: the key 'c' is written twice, first on line 2\n"
        "spec.yaml:3:1 a: the key 'a' is written twice, first on line 1"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1, 2\nb: 3\n", "spec.yaml:2:"),
        ("a: 1\n\tb: 2\n", "spec.yaml:2:1: is not YAML: a tab"),
        ("a: b: c\n", "spec.yaml:1:5: is not YAML: a second ':'"),
        ("a: 'x\n", "spec.yaml:2:1: is not YAML: found unexpected end of stream"),
        ("a: *x\n", "undefined alias"),
        ("a: 1\n---\nb: 2\n", "second document"),
        ("a: \x01\n", "is not YAML"),
        ("a: !!python/object:x {}\n", "has no meaning"),
        ("a: !thing 5\n", "has no meaning"),
        ("a: !!int five\n", "cannot be read as int"),
        ("? [a, b]\n: 1\n", "a key must be plain text"),
        ("", "spec.yaml: is empty"),
        ("# nothing\n", "is empty"),
        ("- a\n", "is a list"),
        ("text\n", "is a single value"),
        ("a: &x {b: *x}\n", "nested"),
        ("a: " + "[" * 3000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    assert said in fails(text)


def test_an_exploding_file_is_refused() -> None:
    lines = ["a0: &a0 [1]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "holds more than" in fails("\n".join(lines))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    for name, said in {
        "none.yaml": "no such file",
        ".": "is a directory",
        "latin.yaml": "2: is not UTF-8",
    }.items():
        with pytest.raises(InputError, match=said):
            load_yaml(tmp_path / name)


def test_standard_input_and_byte_order_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b"\xef\xbb\xbfa: 1\n")

    monkeypatch.setattr("sys.stdin", Stdin)
    document = load_yaml("-")
    assert (document.data, document.file) == ({"a": 1}, "<stdin>")


def test_nearest_names() -> None:
    names = ["llama2-70b", "llama2-7b", "gpt3-175b"]
    assert nearest_names("LLaMA2_70B", names) == ("llama2-70b",)
    assert nearest_names("lama2-70b", names)[0] == "llama2-70b"
    assert nearest_names("zzz", names) == ()
    assert nearest_names(5, names) == ()


def test_trouble_says_everything_on_a_line() -> None:
    trouble = Trouble("cluster.num_gpus", "must be at least 1", 0, "1 to 1,048,576", ("x",), 7, 3, "spec.yaml")
    said = "spec.yaml:7:3 cluster.num_gpus = 0: must be at least 1 (allowed: 1 to 1,048,576); did you mean 'x'?"
    assert str(trouble) == said
    assert trouble.as_dict()["value"] == "0"
    assert InputError(trouble).exit_code == 2

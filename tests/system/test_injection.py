"""Names with line breaks, quotes, words of a shell, markup and terminal escapes, through every door that tells them.

A name is a model's, a chip type's or a network level's, or one that is asked for and unknown. What is printed has no
control character, what is written runs nothing and has the elements that it has with a plain name.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cpsolver.commands.export import JOBS
from cpsolver.doors.export.launch import EXPORTERS
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run, write
from tests.support.html_page import Element, parse
from tests.support.problems import chip_spec, model_spec
from tests.support.selection import only

PLAIN = "plain"
NAMES = {
    "line feed": "x\ntouch PWNED #",
    "carriage return": "x\rtouch PWNED #",
    "both": "x\r\n\r\ntouch PWNED",
    "other line ends": "x\u2028touch PWNED\u2029y\u0085z\x0bw\x0cv",
    "substitution": "$(touch PWNED)",
    "backticks": "`touch PWNED`",
    "expansion": "${x:=$(touch PWNED)}$((x))$IFS",
    "single quotes": "'; touch PWNED; '",
    "double quotes": '"; touch PWNED; "',
    "all quotes": "'\"`\"'",
    "docstring": 'x"""\nopen("PWNED", "w")\n"""',
    "backslash": "x\\",
    "semicolons": "x; touch PWNED & touch PWNED | touch PWNED",
    "here document": "x\nEOF\ntouch PWNED\n<<EOF",
    "option": "--config=/etc/passwd",
    "script": "<script>alert(1)</script>",
    "attribute": "\"><img src=x onerror='alert(2)'>&amp;",
    "end of script": "</script></style></title><svg onload=alert(3)>",
    "comment": "--><!--x",
    "terminal": "x\x1b]0;x\x07\x1b[2J\x1b[31m",
    "eight-bit terminal": "x\x9b2J\x9d0;x\x9c",
    "backspaces": "safe\x08\x08\x08\x08evil\x7f",
    "right to left": "x\u202egnp.exe\u2066",
    "yaml": "x: {y: !!python/object/apply:os.system ['touch PWNED']}\n- &a *a",
    "yaml ends": "x\n---\nkind: Pod\n...\n%TAG",
    "json": '"}],"status":"exported',
    "hydra": "${oc.env:HOME}",
    "formats": "%s{0}{name}%(x)s\\n",
    "markup of the terminal": "[red]x[/red][link=file:///etc/passwd]y[/link]",
    "path": "../../PWNED",
}
WHERE = ("model", "chip", "level")
REPORTS = {
    "evaluate": ("evaluate", "spec.yaml", "--strategy", "plan.yaml"),
    "ranks": ("ranks", "spec.yaml", "--plan", "plan.yaml"),
    "check": ("check", "spec.yaml"),
}
ASKED = ("model", "chip", "launcher", "stack", "network", "field", "stage")
"""Where a name is asked for that is not known; each has an error of its own."""
CASES = [(where, name) for name in NAMES for where in WHERE]


def spec(where: str, name: str, **more: Any) -> dict[str, Any]:
    """Eight devices in nodes of two, two chip types and a network of one level, one of the three with that name."""
    chips = {name if where == "chip" else "x": {"spec": chip_spec()}, "y": {"spec": chip_spec(50)}}
    level = {"name": name if where == "level" else "racks", "gbit_s": 50}
    return {
        "model": model_spec(name=name if where == "model" else "m", layers=4),
        "cluster": {"num_gpus": 8, "gpus_per_node": 2, "chips": chips, "network": {"levels": [level]}},
        "training": {"global_batch_size": 16, "sequence_length": 1024},
        **more,
    }


def placed(where: str, name: str, mixed: bool = True, **flags: bool) -> None:
    """spec.yaml and plan.yaml, whose stages are on the chip with that name, and on the other if chip types mix."""
    chip = name if where == "chip" else "x"
    stages = [{"chip": chip, "layers": 2}, {"chip": "y", "layers": 2}] if mixed else [{"chip": chip, "layers": 4}]
    plan = {"tp": 1, "dp": 4 if mixed else 8, "mbs": 1, "distributed_optimizer": mixed, "stages": stages, **flags}
    write("spec.yaml", json.dumps(spec(where, name)))
    write("plan.yaml", json.dumps(plan))


def assert_harmless(text: str) -> None:
    """Nothing that a terminal obeys, or that an editor takes for another line."""
    wrong = sorted({each for each in text if not each.isprintable() and each not in "\n\t"})
    assert not wrong, wrong
    assert text.splitlines() == text.rstrip("\n").split("\n") or not text


def shown(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return str(result.output)


def walked(page: Element) -> list[Element]:
    below = [each for child in page.children if isinstance(child, Element) for each in walked(child)]
    return [page, *below]


def running(page: Element) -> list[tuple[str, ...]]:
    """What a page runs, loads or leads to: scripts, styles, foreign elements, handlers and links; its data is data."""
    data = page.one("script", id="data")
    found: list[tuple[str, ...]] = [
        (each.name, each.text) for each in walked(page) if each.name in ("script", "style") and each is not data
    ]
    assert data.attributes["type"] == "application/json"  # which nothing runs, and which no sign in it can end
    assert not set("<>&\u2028\u2029").intersection(data.text)
    assert_harmless(data.text)
    assert json.loads(data.text)["plans"]
    foreign = ("img", "iframe", "object", "embed", "link", "base", "form", "meta", "use", "image", "foreignObject")
    found += [(each.name,) for each in walked(page) if each.name in foreign]
    for each in walked(page):
        for key, value in each.attributes.items():
            if key.startswith("on") or key in ("src", "href", "xlink:href", "action", "formaction", "srcdoc"):
                found.append((each.name, key, value))
    return sorted(found)


def some(cases: Sequence[tuple[str, ...]], every: int) -> list[Any]:
    """The cases, of which `make test` runs one in so many."""
    return only(lambda *case: cases.index(case) % every == 0, cases)


@pytest.mark.parametrize(("where", "name"), some(CASES, 19))
def test_reports(where: str, name: str) -> None:
    """Three commands as text and as JSON, and the page."""
    placed(where, NAMES[name])
    for arguments in REPORTS.values():
        assert_harmless(shown(*arguments))
        told = run(*arguments, "--json")
        assert isinstance(json.loads(told.stdout), dict)
        assert_harmless(told.stdout)
    shown(*REPORTS["evaluate"], "--html", "evil.html", "--output", "evil.txt")
    evil = Path("evil.html").read_text(encoding="utf-8")
    assert_harmless(Path("evil.txt").read_text(encoding="utf-8"))
    placed(where, PLAIN)
    shown(*REPORTS["evaluate"], "--html", "plain.html")
    plain = Path("plain.html").read_text(encoding="utf-8")
    assert running(parse(evil)) == running(parse(plain))


def asked(what: str, name: str) -> dict[str, Any]:
    """A spec that asks for something of that name, of which there is none."""
    given = spec("model", PLAIN)
    if what == "model":
        return {**given, "model": name}
    if what == "chip":
        given["cluster"]["chips"] = {name: 8}
    elif what == "stage":
        return {**given, "search": {"pin": {"stage_chips": {name: 2}}}}
    elif what == "network":
        given["cluster"]["network"] = name
    return given if what in ("chip", "network") else {**given, name if what == "field" else what: name}


@pytest.mark.parametrize(("what", "name"), some([(what, name) for name in NAMES for what in ASKED], 16))
def test_errors(what: str, name: str) -> None:
    write("spec.yaml", json.dumps(asked(what, NAMES[name])))
    result = run("check", "spec.yaml")
    assert result.exit_code == 2
    assert_harmless(result.output)
    told = run("check", "spec.yaml", "--json")
    assert_harmless(told.output)
    json.loads(told.stdout)


FILES = [name for name in NAMES if "/" not in NAMES[name]]


@pytest.mark.parametrize("name", FILES)
def test_names_of_files(name: str) -> None:
    """Files that are not there, and one that is there and wrong."""
    file = NAMES[name]
    for arguments in (("check", "--", file), ("evaluate", "--strategy", f"./{file}", "--", "spec.yaml")):
        result = run(*arguments)
        assert result.exit_code == 2
        assert_harmless(result.output)
    write(f"./{file}", "model: {")
    assert_harmless(run("check", "--", f"./{file}").output)


ENDS = [*((target, "none") for target in EXPORTERS), *(("megatron-lm", job) for job in JOBS)]
EXPORTED = [(target, job, where, name) for name in NAMES for target, job in ENDS for where in ("model", "chip")][::3]


def quoted_in_python(text: str) -> bool:
    tree = ast.parse(text)
    return bool(ast.get_docstring(tree))


@pytest.mark.parametrize(("target", "job", "where", "name"), some(EXPORTED, 47))
def test_exports_and_jobs(target: str, job: str, where: str, name: str) -> None:
    """With this name the files have what they have with a plain one, but for comments, tables and device types."""
    mixed = target not in ("accelerate", "verl", "mindformers", "paddleformers") and job != "pytorchjob"
    more = () if job == "none" else ("--job", job)
    written: dict[str, dict[str, str]] = {}
    for label in (PLAIN, NAMES[name]):
        placed(where, label, mixed, flash_attention=target != "megatron-deepspeed")
        told = run("export", "spec.yaml", "--to", target, "--plan", "plan.yaml", *more)
        assert told.exit_code == 0, told.output
        assert_harmless(told.output)
        document = json.loads(run("export", "spec.yaml", "--to", target, "--plan", "plan.yaml", *more, "--json").stdout)
        written[label] = document["files"]
        assert all(each.isprintable() for each in document["arguments"])
    plain, evil = written.values()
    assert plain.keys() == evil.keys()
    for file, text in evil.items():
        assert_harmless(text)
        if file.endswith((".sh", ".sbatch", ".env")):
            assert code(text) == code(plain[file])
        elif file.endswith(".py"):
            assert quoted_in_python(text)
        elif file in ("kubernetes.yaml", "pytorchjob.yaml", "volcano.yaml"):
            assert shapes(text) == shapes(plain[file])
        elif file.endswith(".yaml"):
            assert YAML(typ="safe").load(text).keys() == YAML(typ="safe").load(plain[file]).keys()


def code(text: str) -> list[str]:
    """A script without its comments; of Slurm's options the job's name is a label."""
    kept = [line for line in text.splitlines() if not re.match(r"\s*#(?!SBATCH)", line)]
    for line in kept:
        if line.startswith("#SBATCH --job-name="):
            assert re.fullmatch(r"#SBATCH --job-name=[a-z0-9-]+", line)
    return [line for line in kept if not line.startswith("#SBATCH --job-name=")]


def shapes(text: str) -> list[Any]:
    """Manifests without texts; every word of a command is one of ours, and names are labels."""
    documents = list(YAML(typ="safe").load_all(text))
    for document in documents:
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", document["metadata"]["name"])
        assert_commands(document)
    return [shape(document) for document in documents]


def assert_commands(value: Any) -> None:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if key == "command":
            shell, option, words, name = inner
            assert (shell, option, name) == ("bash", "-c", "node")
            number = r"(\$\(\(\d+ \+ (JOB_COMPLETION|VC_TASK)_INDEX\)\)|\$RANK)"
            known = (
                rf"export NODE_RANK={number} MASTER_ADDR=(\$MASTER_ADDR|[a-z0-9.-]+); exec bash /plan/node.sh \"\$@\""
            )
            assert re.fullmatch(known, words), words
        elif key == "nodeSelector":
            assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", inner["accelerator"])
        else:
            assert_commands(inner)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


@pytest.mark.parametrize("name", NAMES)
def test_scripts_of_jobs_run_nothing_else(name: str, tmp_path: Path) -> None:
    """The batch script and the loop of ssh, really run, with stubs for what they start."""
    for program in ("srun", "ssh", "scontrol"):
        stub = tmp_path / "bin" / program
        stub.parent.mkdir(exist_ok=True)
        stub.write_text("#!/bin/sh\necho started\n", encoding="utf-8")
        stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_NODELIST_HET_GROUP_0": "a"}
    for kind, main in (("sbatch", "job.sbatch"), ("ssh", "ssh.sh")):
        placed("chip", NAMES[name])
        folder = tmp_path / kind
        shown("export", "spec.yaml", "--to", "megatron-lm", "--plan", "plan.yaml", "--job", kind, "-o", str(folder))
        before = {path.name for path in folder.iterdir()}
        there = {**environment, "SLURM_SUBMIT_DIR": str(folder)}
        subprocess.run(["bash", main], cwd=folder, env=there, check=True, capture_output=True)
        assert {path.name for path in folder.iterdir()} - before <= {"logs"}


def test_there_are_enough_of_them() -> None:
    assert len(CASES) * 7 + len(EXPORTED) * 2 + len(NAMES) * len(ASKED) * 2 >= 500


@pytest.mark.parametrize("words", ["$((\x1b\x07))", "$(\x1b[2J)", "${\x9b2J}", "\x1b]0;x\x07"])
def test_what_a_script_says_reaches_no_terminal_as_it_is(words: str) -> None:
    write("train.sh", f"--micro-batch-size {words} --seq-length '{words}' --{words} 1\n")
    assert_harmless(shown("import", "train.sh"))
    sizes = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --max-position-embeddings 512"
    more = f"--vocab-size 1000 --bf16 --micro-batch-size 1 --war\x7fn 1 '--{words}'"
    write("train.sh", f"torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} {more}\n")
    told = shown("import", "train.sh", "--chip", "a800", "--global-batch-size", "8")
    assert "--war\\x7fn" in told
    assert_harmless(told)

"""Scripts of a few lines that ask for trees of work: read at once, or refused in words."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from cpsolver.doors.importing import variables
from cpsolver.doors.importing.imported import ImportOptions, import_source
from cpsolver.doors.importing.patterns import extended_regex, glob_regex
from cpsolver.doors.importing.shell import read_script
from cpsolver.inputs.errors import InputError

BASH = shutil.which("bash")
MODEL = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 128 --micro-batch-size 1"
    " --global-batch-size 8 --vocab-size 32000"
)


def nested(opening: str, depth: int, closing: str = "}") -> str:
    return f"show {opening * depth}{closing * depth}"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """What runs away is ended after ten seconds of computing: nothing here takes one."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("it runs away")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, 10)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize(
    "text",
    [
        nested("${x:-", 60),
        nested("${x-", 60).replace("show ", 'show "') + '"',
        "".join(["show ", *(f"${{x{n}:-" for n in range(60)), "}" * 60]),
        "x=1\n" + nested("${x+", 60),
        "x=abc\n" + nested("${x#", 40),
        "x=aaa\nshow ${x##" + "*a" * 30 + "b}",
        f"x={'a' * 60}\nif [[ $x =~ ^(a+)+b$ ]]; then show 1; fi",
        f"x={'a' * 60}\nif [[ $x =~ a*a*a*a*a*a*a*b$ ]]; then show 1; fi",
        "\n".join(f"V{n}=$1$(other {n})" for n in range(400)),
        f"case a in {'[' * 40_000}) show 1 ;; esac",
        f"case a in {'[[:' * 20_000}) show 1 ;; esac",
    ],
    ids=lambda text: text[:16],
)
def test_what_could_double_at_every_level_is_read(text: str) -> None:
    read_script(text, None, {})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (nested("${x:-", 2400), "more than 9,000 letters"),
        ("\n".join(f"a{n}=a{n + 1}+a{n + 1}" for n in range(40)) + "\na40=1\nshow $((a0))", "more than 9,000 letters"),
        ("show " + "{a,b}" * 30, "stands for more than 10,000 words"),
        ("show {1..9999}{1..9999}", "stands for more than 10,000 words"),
        ("show " + "{a," * 8000, "more than 100 braces"),
        ("eval " * 90 + "show " + "x" * 100, "more than 9,000 letters"),
    ],
    ids=lambda text: text[:16],
)
def test_more_than_anybody_writes_is_refused(text: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "_MOST_LETTERS", 9000)
    with pytest.raises(InputError, match=told):
        read_script(text, None, {})


PATTERNS = ["*", "a*", "*a", "a*b*c", "*a*b*", "**a", "a?*[bc]*", "*a*ab", "*[!a]b*", "a**b", "*\\**"]
TEXTS = ["", "a", "b", "ab", "abc", "aab", "abab", "a*b", "xaxbxc", "aabab", "cab", "abcabc", "a-b"]


@pytest.mark.skipif(BASH is None, reason="there is no bash")
def test_stars_mean_what_bash_means_by_them() -> None:
    lines = [f"[[ '{text}' == {pattern} ]] && echo 1 || echo 0" for pattern in PATTERNS for text in TEXTS]
    told = subprocess.run(["bash", "--norc", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    found = [
        str(int(bool(glob_regex([(pattern, False)]) and re.fullmatch(glob_regex([(pattern, False)]) or "", text))))
        for pattern in PATTERNS
        for text in TEXTS
    ]
    assert found == told.stdout.split()


def test_expressions_that_are_usual_are_followed() -> None:
    for usual in ("^[0-9]+$", "^(a|b)$", "^([0-9]+)$", "^v[0-9]+(\\.[0-9]+)?$", "gpu|npu|xpu"):
        assert extended_regex([(usual, False)]) is not None, usual


@pytest.mark.parametrize(
    "script",
    ["echo ${NINES}", "shift NINES", "echo {1..NINES}", f"torchrun --nproc_per_node NINES pretrain_gpt.py {MODEL}"],
)
def test_numbers_of_thousands_of_digits_are_refused_in_words(script: str, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(script.replace("NINES", 5000 * "9") + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="number too long to be read"):
        import_source(str(file), ImportOptions(chip="h100"))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_config_json_of_thousands_of_brackets_is_refused_in_words(opening: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "odd": ' + opening * 20_000)
    with pytest.raises(InputError, match="is not JSON"):
        import_source(str(tmp_path / "config.json"), ImportOptions())

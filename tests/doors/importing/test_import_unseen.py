"""What public scripts of research groups showed when they were read for the first time, each by a script of our own."""

from __future__ import annotations

import pytest

from cpsolver.doors.importing.shell import read_script
from cpsolver.inputs.errors import InputError
from tests.support.command import in_tmp, write  # noqa: F401
from tests.support.scripts import LLAMA, STEP, imported, torchrun


def shown(text: str) -> str:
    """The words behind `show`, with `?` for what is not known."""
    script = read_script(text, None, {})
    words = [word for run in script.commands if run.words[0] == "show" for word in run.words[1:]]
    return " ".join("?" if script.variables.unclear_in(word) else word for word in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=($(sort -u hosts))\nshow ${#A[@]}", "?"),
        ('A=("$(sort -u hosts)")\nshow ${#A[@]}', "1"),
        ("A=(x $(cat hosts) y)\nshow ${A[0]} ${A[1]} ${A[2]} ${#A[@]} ${!A[@]}", "x ? ? ? ?"),
        ("A=(x y $(cat hosts))\nshow ${A[1]} ${A[@]:0:2} ${A[-1]}", "y x y ?"),
        ('A=($HOSTS)\nB=("${A[@]}")\nshow ${#B[@]}', "?"),
        ("set -- $(cat hosts)\nshow $#", "?"),
        ("mapfile -t A < hosts\nshow ${#A[@]}", "?"),
        ('IFS=, read -ra A <<< "$(cat hosts)"\nshow ${#A[@]}', "?"),
        ("A=(x y z)\nshow ${#A[@]} ${A[@]:1}", "3 y z"),
        ("A=abc\nshow ${#A[@]}", "1"),
    ],
)
def test_an_output_that_is_not_known_may_be_several_words(text: str, words: str) -> None:
    """nemowon/apecs-megatron-apptainer 7b1f139: the nodes are as many as a file has lines."""
    assert shown(text) == words


def test_devices_by_the_lines_of_a_file_are_asked_for() -> None:
    script = "NODES=($(sort -u $PBS_NODEFILE))\n" + torchrun(LLAMA + STEP).replace(
        "--nnodes=1", "--nnodes ${#NODES[@]}"
    )
    with pytest.raises(InputError, match=r"sort -u \$PBS_NODEFILE"):
        imported(script)

"""What a script's text gives, compared with bash itself: assignments, expansions, arithmetic, splitting."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpsolver.doors.importing.arithmetic import ArithmeticUnclearError, evaluate
from cpsolver.doors.importing.command import find_training
from cpsolver.doors.importing.shell import Script, read_script
from cpsolver.doors.importing.variables import parse_given
from cpsolver.inputs.errors import InputError

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash")
NAMES = ("A", "B", "C")


def words(text: str, **values: str) -> list[str]:
    """The words that a script shows."""
    return [
        word for run in read_script(text, None, values).commands if run.words[0] == "show" for word in run.words[1:]
    ]


def bash_words(text: str) -> list[str]:
    """What bash makes of the last command, `show`, which prints its words between separators."""
    assert BASH is not None
    script = 'show() { for word in "$@"; do printf \'%s\\001\' "$word"; done; }\n' + text
    done = subprocess.run(
        [BASH, "--norc", "-c", script], capture_output=True, text=True, check=True, env={}, timeout=20
    )
    return done.stdout.split("\001")[:-1]


def reason(script: Script) -> str:
    return "; ".join(f"{unclear.name} {unclear.reason} (line {unclear.line})" for unclear in script.variables.unclear)


FIXED = {
    "plain and quoted": 'A=1\nB="x $A y"\nC=\'$A\'\nshow $A "$B" $B $C',
    "braces and joining": "A=a\nshow ${A}b \"${A}\"c d$A'e f'",
    "defaults": 'A=\nshow ${A:-x} ${A-y} ${B:-"p q"} ${C:=z} $C "${A:+n}" ${C:+s}',
    "nested defaults": "A=7\nshow ${B:-${C:-$A}} ${B:-$((A * 2))}",
    "continuation": "show a \\\n  b \\\n c",
    "continuation ended by a comment": "A=1\nshow a # b \\\nA=2\nshow $A",
    "array": 'B=9\nA=(a "b c" $B)\nA+=(d)\nshow "${A[@]}" ${A[@]} ${#A[@]} ${A[1]} "${A[*]}"',
    "array over lines": 'A=(\n  --x 1  # note\n  --y "2 3" \\\n  --z\n)\nshow "${A[@]}"',
    "empty array": 'A=()\nshow "${A[@]}" end',
    "appending": 'A=a\nA+=b\nA+="$A c"\nshow "$A"',
    "arithmetic": "A=3\nB=4\nshow $((A*B)) $(( $A + $B * 2 )) $((-7 / 2)) $((-7 % 3)) $((2**5)) $((A > B ? 1 : 0))",
    "trimming": 'A=dir/model-7b.tar.gz\nshow ${A##*/} ${A#*/} ${A%.gz} ${A%%.*} ${A/model/m} "${A//-/_}"',
    "case, length and part": "A=Hello\nshow ${A,,} ${A^^} ${#A} ${A:1:3} ${A:2} ${A: -2}",
    "indirect": "A=B\nB=5\nshow ${!A}",
    "text with lines": 'A="\n  --x 1 \\\n  --y 2\n"\nshow $A',
    "escapes": 'show a\\ b "q\\"q" \'s\'"\'"\'s\' \\$A "\\$A" "\\n"',
    "several statements": "A=1; B=2 && C=3\nshow $A $B $C",
    "export and declare": "export A=1 B=2\ndeclare -x C=3\nshow $A $B $C",
    "here-document": "A=1\ncat > /dev/null <<EOF\nA=2\nshow no\nEOF\nshow $A",
    "redirection": "show a b 2>&1 | cat",
    "empty words": "A=\nshow $A \"$A\" ''",
    "a text behind <<<": 'A=x\ncat <<< "$A" > /dev/null\nA=2\nshow $A',
    "process substitution": "mapfile -t A < <(echo 1)\nB=3\nshow $B",
    "read": 'E=n:2:4\nIFS=: read -r A B C <<< "$E"\nshow "$A" "$B" "$C"',
    "read of blanks": 'read A B C <<< "  x  y "\nread -r D <<< " p  q "\nshow "$A" "$B" "$C" "$D"',
    "read of the rest": 'read A B <<< "x y  z"\nIFS=, read C D <<< " 1 ,2,3"\nshow "$A" "$B" "$C" "$D"',
    "read into an array": 'IFS=, read -ra A <<< "a b,,c"\nread -ra B <<< ""\nIFS= read -r C <<< " k "\n'
    'show "${A[@]}" ${#B[@]} "$C"',
    "a sweep": "for E in a:1 b:2; do IFS=: read -r N TP <<< $E; done\nshow $N $TP",
    "cut of a text": 'A=$(cut -d: -f2 <<< "a:b:c")\nif grep -q 70b <<< llama-70b; then B=1; fi\nshow $A $B',
    "grep -o": "M=(--num-layers 27 --x 1)\nN=$(echo \"${M[@]}\" | grep -oP '(?<=--num-layers )\\d+')\nshow $((N-1)) "
    "$(echo 13b-7x | grep -oE '[0-9]+')",
    "one value for one command": "A=1\nA=2 true\nshow $A",
    "subshell": "A=1\n(A=2; true)\nshow $A",
}


@needs_bash
@pytest.mark.parametrize("text", FIXED.values(), ids=FIXED.keys())
def test_words_are_those_of_bash(text: str) -> None:
    assert words(text) == bash_words(text)


VALUES = st.text(alphabet="ab1 ./-", max_size=6)
QUOTED = VALUES.map(lambda value: f"'{value}'")
DOUBLE = st.tuples(VALUES, st.sampled_from(["", "${A}", "${B}", "${C:-d}", "$((A1 + 2))"]), VALUES).map(
    lambda parts: '"' + "".join(parts) + '"'
)
SIMPLE = ["$A", "${A}", "x$A", '"$B"', "${A:+set}", "${#B}", '"${B#a}"', '"${B%%1*}"', '"${A:1:2}"', '"${A//a/b}"']
LISTS = ['"${L[@]}"', "${L[@]}", "${#L[@]}", '"${L[0]}"', '"${L[@]:1}"', "$((A1*3%5))", '"${B^^}"']
DEFAULTS = ['"${C:-$A}"', "${C:-x y}", '${C:-"x y"}', "a${C:-x $A}b"]
EXPANSION = st.sampled_from([*SIMPLE, *LISTS, *DEFAULTS])
ASSIGNED = st.tuples(st.sampled_from(NAMES), st.sampled_from(["=", "+="]), st.one_of(QUOTED, DOUBLE)).map("".join)
LISTED = st.tuples(st.sampled_from(["L=", "L+="]), st.lists(st.one_of(QUOTED, DOUBLE, EXPANSION), max_size=3)).map(
    lambda parts: f"{parts[0]}({' '.join(parts[1])})"
)


@needs_bash
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(ASSIGNED, LISTED), min_size=1, max_size=5), st.lists(st.one_of(DOUBLE, EXPANSION), max_size=4)
)
def test_random_assignments_and_expansions_are_those_of_bash(lines: list[str], shown: list[str]) -> None:
    text = "\n".join(["A=a1; B='a 1'; C=; A1=7; L=(one 'two three')", *lines, f"show {' '.join(shown)}"])
    assert words(text) == bash_words(text)


NUMBER = st.integers(0, 99).map(str)
EXPRESSION = st.recursive(
    NUMBER | st.sampled_from(["A", "B"]),
    lambda inner: (
        st.tuples(
            inner, st.sampled_from(["+", "-", "*", "<", "<=", "==", "!=", "&", "|", "^", "&&", "||", "<<", ">>"]), inner
        ).map(lambda parts: f"({' '.join(parts)})")
        | st.tuples(st.sampled_from(["-", "!", "~"]), inner).map(lambda parts: f"{parts[0]} {parts[1]}")
        | st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} ? {parts[1]} : {parts[2]})")
    ),
    max_leaves=8,
)


@needs_bash
@settings(max_examples=40, deadline=None)
@given(EXPRESSION, NUMBER, st.sampled_from(["+", "-", "*", "/", "%", "**"]), st.integers(1, 9))
def test_arithmetic_is_that_of_bash(expression: str, left: str, operator: str, right: int) -> None:
    text = f"A=6\nB=11\nshow $(({expression})) $(({left} {operator} {right})) $((-{left} {operator} {right}))"
    assert words(text) == bash_words(text)


@pytest.mark.parametrize("text", ["1 / 0", "1 +", "A = 3", "2 ** -1", "08", "(1", "1 2"])
def test_arithmetic_that_is_not_followed_says_so(text: str) -> None:
    with pytest.raises(ArithmeticUnclearError):
        evaluate(text, lambda name: 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("show $A", "A is not set in the script (line 1)"),
        ("show $1", "1 is an argument of the script (line 1)"),
        ("A=$(hostname)\nshow $A", "(hostname) is the output of a command, which is not run (line 1)"),
        ("A=`nproc`\nshow $A", "(nproc) is the output of a command, which is not run (line 1)"),
        (
            "A=1\nif [ -d x ]; then\n  A=2\nfi\nshow $A",
            "A is set in a conditional, which is not followed (to '2' there)",
        ),
        ("A=1\ntest -d x && A=2\nshow $A", "A is set in a conditional"),
        ('if [ $N -le 4 ]; then\n  : "${A:=4}"\nelse\n  : "${A:=8}"\nfi\nshow $A', "A is set in a conditional"),
        ("for A in 1 $(ls); do true; done\nshow $A", "A is the variable of a loop (line 1)"),
        ("case $(uname) in\n  a) A=1 ;;\nesac\nshow $A", "A is set in a conditional"),
        ("A=1\n((B = A++ + 1))\nshow $A", "A is changed by arithmetic that is not followed (line 2)"),
        ("read A\nshow $A", "A is read when the script runs (line 1)"),
        ("f() {\n  A=1\n}\n[ -e x ] && f\nshow $A", "A is set in a conditional"),
        ("A=(1 2)\nA[1]=3\nshow ${A[1]}", "A has an element set by itself"),
        ("A={a path}\nshow $A", "A is set for one command only"),
        ("A=$((1 / 0))\nshow $A", "division by 0"),
    ],
)
def test_what_cannot_be_known_is_named_with_its_line(text: str, said: str) -> None:
    script = read_script(text, None, {})
    assert said in reason(script)
    assert script.variables.unclear_in(script.commands[-1].words[-1])


def test_what_a_conditional_adds_is_left_out_with_a_warning() -> None:
    script = read_script('A=(x)\nif [ -n "$HOME" ]; then\n  A+=(--wandb "$K")\nfi\nshow "${A[@]}"', None, {})
    assert script.commands[-1].words == ("show", "x")
    assert script.warnings == ["line 3: in a conditional, not followed: nothing is added to A (--wandb $K)"]


def test_a_conditional_that_changes_nothing_is_certain() -> None:
    assert words("A=1\nif [ x ]; then A=1; fi\nshow $A") == ["1"]


def test_a_value_before_an_option_of_the_script_is_kept_with_a_warning() -> None:
    script = read_script('A=1\nwhile [ $# -gt 0 ]; do\n  A="$2"\n  shift\ndone\nshow $A', None, {})
    assert script.commands[-1].words == ("show", "1")
    assert "its value before is taken" in script.warnings[0]


def test_given_values_hold_whatever_the_script_says() -> None:
    assert words("A=1\nif [ x ]; then A=2; fi\nshow $A $B $1", A="8", B="9", **{"1": "p"}) == ["8", "9", "p"]


def test_given_values_are_name_and_value() -> None:
    assert parse_given(("A=1", "B=x=y")) == {"A": "1", "B": "x=y"}
    with pytest.raises(InputError, match="is not NAME=VALUE"):
        parse_given(("A",))


def test_sourced_files_and_eval() -> None:
    script = read_script('. ./env.sh\nCMD="show a"\neval "$CMD" b', None, {})
    assert script.warnings == ["line 1: the file ./env.sh is not read, nor what it sets"]
    assert script.commands[-1].words == ("show", "a", "b")


def test_defaults_that_the_environment_may_replace_are_remembered() -> None:
    script = read_script('A=${A:-4}\nB=${SLURM_N:-"2"}\nshow $A $B', None, {})
    assert script.commands[-1].words == ("show", "4", "2")
    assert script.variables.defaults == {"A": "4", "SLURM_N": "2"}


def test_what_a_conditional_sets_where_a_cluster_has_not_is_a_default() -> None:
    script = read_script('if [[ -z "$WORLD_SIZE" ]]; then\n  WORLD_SIZE=4\nfi\nshow $WORLD_SIZE', None, {})
    assert script.commands[-1].words == ("show", "4")
    assert script.variables.defaults == {"WORLD_SIZE": "4"}
    for condition, name in (("-z $WORLD_SIZE", "X"), ("-n $WORLD_SIZE", "WORLD_SIZE"), ("-z $RANK", "WORLD_SIZE")):
        known = read_script(f"if [ {condition} ]; then {name}=4; fi\nshow $WORLD_SIZE", None, {})
        assert known.variables.unclear_in(known.commands[-1].words[1])


def test_texts_that_grow_or_call_themselves_end() -> None:
    doubled = "A=aaaaaaaa\n" + 'A="$A$A"\n' * 60 + "B=(x x)\n" + 'B=("${B[@]}" "${B[@]}")\n' * 40 + "show $A"
    assert "is too long to be followed" in reason(read_script(doubled, None, {}))
    with pytest.raises(InputError, match="calls itself"):
        read_script('A=\'eval "$A"\'\neval "$A"', None, {})
    assert "not followed" in reason(read_script("A=A\nshow $((A))", None, {}))


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet="A=x1 \n\"'`$(){}[]<>|&;#\\-!+:*@if thendofe", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        assert read_script(text, None, {}).variables.given == {}


@pytest.mark.parametrize("text", ["A='x", 'A="x', "A=(x", "A=${x", "A=$(x", "A=`x", "A=(a;b)"])
def test_text_that_never_closes_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="is not a shell script"):
        read_script(f"B=1\n{text}\n", "run.sh", {})


def test_what_grep_finds_in_a_known_text_decides() -> None:
    text = """ARGS="--scaling 3 --Trace"
if echo "$ARGS" | grep -q -- "--scaling"; then A=1; else A=2; fi
if echo "$ARGS" | grep -qi trace; then B=1; else B=2; fi
if echo "$ARGS" | grep -qF "3.*"; then C=1; else C=2; fi
if ! echo "$ARGS" | grep -q absent; then D=1; else D=2; fi
show $A $B $C $D"""
    assert words(text) == bash_words(text) == ["1", "1", "2", "1"]


def test_what_would_take_grep_long_to_find_is_not_looked_for() -> None:
    for pattern, text in (("a+a+a+b", "a"), ("a+a+b", 401 * "a"), ("a+b", 10_001 * "a")):
        script = read_script(f"A=$(echo {text} | grep -oE '{pattern}')\nshow $A", None, {})
        assert "grep -oE" in reason(script)


def test_patterns_and_texts_that_are_not_known_leave_grep_undecided() -> None:
    for condition in ('echo "$X" | grep -q a', "echo abc | grep -q 'a.c'", "echo abc | grep -qw a", "grep -q a file"):
        script = read_script(f"A=1\nif {condition}; then A=2; fi\nshow $A", None, {})
        assert "A is set in a conditional" in reason(script)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ('IFS=: read A B <<< "x:"', "A"),  # bash leaves one sign at the end out, or not
        ('read A <<< "x\\ty"', "A"),  # a backslash without -r
        ('read -d, A <<< "x,y"', "A"),
        ("IFS=:, read A B <<< x:y", "A"),
        ("read A <<< $(nvidia-smi)", "A"),
        ("if [ -f x ]; then read A <<< y; fi", "A"),
        ("A=$(echo ab | grep -oE 'a.')", "grep"),
        ("A=$(echo ab | grep -oE '[z-a]')", "grep"),
        ("A=$(echo a1 | grep -oE '\\d')", "grep"),
    ],
)
def test_texts_that_are_not_split_or_found_as_bash_does_are_unclear(command: str, named: str) -> None:
    assert named in reason(read_script(f"{command}\nshow $A", None, {}))


def test_the_lines_that_a_shell_is_given_are_commands() -> None:
    """Expanded as bash expands a here-document: quotes are letters, a backslash keeps a dollar."""
    text = 'N=4\nsbatch -p q <<EOF\n#SBATCH -n 2\nsrun run --n $N "a b" \\${LATER} it\'s\nEOF\nshow $N'
    script = read_script(text, None, {})
    given = next(run.words for run in script.commands if run.words[0] == "sbatch")
    assert given[:4] == ("sbatch", "-p", "q", "-c")
    assert given[4] == '#SBATCH -n 2\nsrun run --n 4 "a b" ${LATER} it\'s\n'
    assert words(text) == ["4"]
    assert words("cat <<EOF\nN=5\nEOF\nshow end") == ["end"]


def test_here_documents_of_quoted_marks_files_and_other_commands_are_no_commands() -> None:
    quoted = read_script("N=4\nbash <<'EOF'\nrun $N\nEOF", None, {})
    assert quoted.commands[0].words == ("bash", "-c", "run $N\n")
    tabs = read_script("bash <<-EOF\n\trun\n\tEOF\nshow", None, {})
    assert [run.words for run in tabs.commands] == [("bash", "-c", "run\n"), ("show",)]
    for text in ("bash job.sh <<EOF\nrun\nEOF", "cat > f <<EOF\nrun\nEOF", "bash <<EOF\n${N\nEOF"):
        assert all("-c" not in run.words for run in read_script(text, None, {}).commands)


def test_a_training_that_sbatch_is_given_is_found() -> None:
    text = 'TP=2\nsbatch <<EOF\n#!/bin/bash\nsrun bash -c "python pretrain_gpt.py --num-layers 8 --tp $TP"\nEOF\n'
    training = find_training(read_script(text, None, {}), None)
    assert (training.program, training.tokens) == ("pretrain_gpt.py", ("--num-layers", "8", "--tp", "2"))

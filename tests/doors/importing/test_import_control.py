"""Conditionals, loops, functions and arguments of a script, compared with bash itself."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpsolver.doors.importing.shell import Script, read_script
from cpsolver.inputs.errors import InputError

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash")
SHOW = "show() { for word in \"$@\"; do printf '%s\\001' \"$word\"; done; printf '\\002'; }\n"


def bash_shows(text: str, *arguments: str) -> list[list[str]]:
    """The words of each `show` that bash runs, in order."""
    assert BASH is not None
    command = [BASH, "--norc", "-c", f'set -- "$@"\n{SHOW}{text}', "run.sh", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={}, timeout=20)
    return [shown.split("\001")[:-1] for shown in done.stdout.split("\002")[:-1]]


def shows(script: Script) -> list[list[str]]:
    """The words of each `show` that reading gives."""
    return [list(command.words[1:]) for command in script.commands if command.words[0] == "show"]


def is_known(script: Script) -> bool:
    """Whether reading says of every `show` that it is as it says."""
    ours = [command for command in script.commands if command.words[0] == "show"]
    unclear = any(script.variables.unclear_in(word) for command in ours for word in command.words)
    return not unclear and not script.warnings and all(command.certain for command in ours)


FIXED = {
    "if": "A=7B\nif [ $A = 1B ]; then show one; elif [ $A = 7B ]; then show seven; else show none; fi",
    "double brackets": 'D=fp8\nif [[ "$D" == "fp8" && $D != bf* ]]; then show a; fi\n[[ $D == f?8 ]] && show b',
    "numbers": "E=4\n[ $E -gt 1 ] && show gt\n[ $E -le 3 ] || show le\n[[ $E -eq 2*2 ]] && show eq\n((E >= 4)) && show",
    "emptiness": 'A=\n[ -z $A ] && show z\n[ -n "$A" ] || show n\n[[ -z ${B} ]] && show unset\n[ $A ] || show no',
    "what a cluster may set": 'if [ -z "$WORLD_SIZE" ]; then export WORLD_SIZE=2; RANK=0; fi\nshow $WORLD_SIZE $RANK',
    "set at all": "A=\n[[ -v A ]] && show a\n[ -v A ] && show b\n[[ -v B ]] || show c\nif [ -v B ]; then show d; fi",
    "ends of options": "show $(dirname -- /a/b) $(basename -- /a/b.sh .sh) $(basename /a/c)",
    "not": "! [ a = b ] && show x\n[ ! a = b ] && show y\n[[ ! ( a == b || c == d ) ]] && show z",
    "and, or": "[ a = a -a b = c ] || show a\n[ a = b -o c = c ] && show b",
    "regex": "[[ abc123 =~ ^[a-z]+[0-9]+$ ]] && show m\n[[ a.c =~ a\\.c ]] && show n\n[[ abc =~ 'a.c' ]] || show o",
    "case": "for M in 7B 13b x; do case $M in\n 7B|8B) show a ;;\n [0-9]*b) show b ;;\n *) show n;; esac; done",
    "falling through": "case a in a) show 1 ;& b) show 2 ;; c) show 3; esac\ncase ab in a*) show 4 ;;& *) show 5; esac",
    "loops": "for x in a 'b c' {1..3} $(seq 2 4); do show $x; done; show $x",
    "counting": "for ((i = 0; i < 3; i++)); do show $i; done; show $i",
    "while": "n=4\nwhile [ $n -gt 0 ]; do show $n; n=$((n - 2)); done\nuntil ((n == 2)); do ((n++)); done; show $n",
    "break": "for a in 1 2 3; do for b in x y; do [ $b = y ] && continue 2; [ $a = 3 ] && break 2; show $a; done; done",
    "functions": 'f() { local a=$1; b=$2; shift; show "$a" $# "$@"; return 3; }\na=0\nf 1 "2 3" || show no\nshow $a $b',
    "printed": 'f() { echo "x $1"; }\nA=$(f 3)\nB=$(basename /a/b.sh .sh)-$(dirname /a/b)\nshow "$A" $B $(expr 3 + 4)',
    "pipes": 'G=0,1,2\nN=$(echo $G | tr "," "\\n" | wc -l)\nshow $N $(echo a:b | cut -d: -f2) $(echo "3*4" | bc)',
    "arguments": 'show $# "$1" "${2}" "$@" "$*" ${3:-none} ${@:2}\nshift\nshow $1 $#',
    "set": 'set -- a "b c"\nshow "$2" $#\nfor x; do show "$x"; done',
    "options": 'while [ $# -gt 0 ]; do case "$1" in --a) A=$2; shift 2;; *) shift;; esac; done\nshow "$A" $#',
    "star": 'for p in $*; do if [[ $p == --d=* ]]; then d=${p#*=}; fi; done\nshow "$d"',
    "subshell": "A=1\n(A=2; show $A)\nshow $A\n{ A=3; show $A; }\nshow $A\nA=4 | true\nshow $A",
    "exit": "show a\nif [ x = x ]; then exit 1; fi\nshow b",
    "here-document": "cat > /dev/null <<EOF\nif fi done\nEOF\nshow a\ncat <<-'X' >/dev/null\n\t)\n\tX\nshow b",
    "braces": "show {a,b}c x{1..3} {08..10} a{b,c{d,e}} {a..c} '{1..2}' {x} \"{1..2}\" {1..7..3}",
    "arithmetic commands": "((a = 3, b = a * 2))\nlet c=b+1\n((a += 2))\n((--b))\nshow $a $b $c",
    "status": "true && show a\nfalse || show b\ntrue\nif [ $? -eq 0 ]; then show c; fi",
    "chains": "[ 1 = 1 ] && [ 2 = 3 ] || true && show y",
    "negated function": "g() { [ $1 = a ]; }\nif ! g b; then show no; fi\nif g a; then show yes; fi",
    "redirected in a function": 'f() { echo out; echo err >&2; }\nA=x$(f 2>/dev/null)\nshow "${A:+some}"',
    "keys": 'A=(x y z)\nfor i in "${!A[@]}"; do show $i ${A[$i]}; done',
}


@needs_bash
@pytest.mark.parametrize("text", FIXED.values(), ids=FIXED.keys())
def test_scripts_do_what_they_do_in_bash(text: str) -> None:
    arguments = ("--a", "b c", "--d=5")
    script = read_script(text, "run.sh", {}, arguments)
    if is_known(script) or "redirected" not in text:
        assert shows(script) == bash_shows(text, *arguments)


VARIABLES = ("A", "B", "N", "L")
WORD = st.sampled_from(
    ["a", "7B", "3", "0", "''", '"a b"', "$A", '"$B"', "${N}", "$1", '"$2"', "x$A", "${#A}", "$(echo $B)"]
)
LONG = st.sampled_from(
    ["$@", '"$@"', "$*", '"$*"', '"${L[@]}"', "$#", "${@:2}", "{1..3}", "$(seq 2)", "a{b,$A}", "${B:-d}"]
)
NUMBER = st.sampled_from(["0", "1", "3", "$N", "$((N + 1))", "$#", "${#L[@]}"])
QUOTED = st.sampled_from(["a", "7B", "a*", "$A", '"$A"', '"$B"', "$1", "'a b'", "[0-9]*", "${B%B}"])
CONDITION = st.one_of(
    st.tuples(WORD, st.sampled_from(["=", "!=", "=="]), WORD).map(lambda p: f"[ {' '.join(p)} ]"),
    st.tuples(QUOTED, st.sampled_from(["=", "!=", "==", "=~"]), QUOTED).map(lambda p: f"[[ {' '.join(p)} ]]"),
    st.tuples(NUMBER, st.sampled_from(["-eq", "-ne", "-gt", "-lt", "-ge", "-le"]), NUMBER).map(
        lambda p: f"[ {' '.join(p)} ]"
    ),
    st.tuples(st.sampled_from(["-z", "-n", "! -z"]), WORD).map(lambda p: f"[ {' '.join(p)} ]"),
    st.tuples(st.sampled_from(["-z", "-n"]), QUOTED, st.sampled_from(["&&", "||"]), QUOTED).map(
        lambda p: f"[[ {p[0]} {p[1]} {p[2]} {p[3]} == a ]]"
    ),
    st.sampled_from(
        ["((N > 1))", "((N++ < 2))", "[ -f nothing ]", "[[ -d / ]]", "true", "false", "f a", "! f 3", "[ $A ]"]
    ),
)
PLAIN = st.one_of(
    st.tuples(st.sampled_from(VARIABLES[:2]), st.sampled_from(["=", "+="]), WORD).map("".join),
    st.tuples(st.just("N="), NUMBER).map("".join),
    st.lists(st.one_of(WORD, LONG), max_size=3).map(lambda words: f"L+=({' '.join(words)})"),
    st.lists(st.one_of(WORD, LONG), max_size=3).map(lambda words: f"show {' '.join(words)}"),
    st.sampled_from(
        ["shift", "((N += 1))", "local A=l", "f $A b", 'g "$B"', "set -- p q", "unset B", "return", "A=1 | B=2"]
    ),
    st.sampled_from(
        ["break", "continue", "(A=s; show $A)", "B=$(f x)", "A=$(nothing)", "declare B=3", "f $B && A=f", ":"]
    ),
)


def _block(lines: list[str]) -> str:
    return "\n".join(lines)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, min_size=1, max_size=3).map(_block)
    return st.one_of(
        st.tuples(CONDITION, body, body).map(lambda p: f"if {p[0]}; then\n{p[1]}\nelse\n{p[2]}\nfi"),
        st.tuples(CONDITION, body, CONDITION, body).map(
            lambda p: f"if {p[0]}; then\n{p[1]}\nelif {p[2]}; then\n{p[3]}\nfi"
        ),
        st.tuples(WORD, QUOTED, body, QUOTED, body).map(
            lambda p: f"case {p[0]} in\n{p[1]})\n{p[2]}\n;;\n{p[3]}|q)\n{p[4]}\n;;\nesac"
        ),
        st.tuples(st.lists(st.one_of(WORD, LONG), max_size=2), body).map(
            lambda p: f"for A in {' '.join(p[0])}; do\n{p[1]}\ndone"
        ),
        body.map(lambda text: f"for ((i = 0; i < 2; i++)); do\n{text}\ndone"),
        st.tuples(CONDITION, body).map(lambda p: f"k=0\nwhile ((k++ < 2)) && {p[0]}; do\n{p[1]}\ndone"),
        body.map(lambda text: f"while [ $# -gt 0 ]; do\n{text}\nshift\ndone"),
        st.tuples(CONDITION, inner, inner).map(lambda p: f"{p[0]} && {{\n{p[1]}\n}} || {{\n{p[2]}\n}}"),
        body.map(lambda text: f"f() {{\n{text}\n}}"),
    )


STATEMENT = st.recursive(PLAIN, _compound, max_leaves=6)
START = (
    'A=a1; B=7B; N=2; L=(one \'two three\')\nf() { [ "$1" = a ]; }\ng() { local B=$1; A=$B; echo "$1" > /dev/null; }\n'
)


@needs_bash
@settings(max_examples=150, deadline=None)
@given(st.lists(STATEMENT, min_size=1, max_size=5), st.lists(st.sampled_from(["a", "7B", "b c", "3"]), max_size=3))
def test_random_scripts_are_known_as_bash_runs_them_or_not_known(lines: list[str], arguments: list[str]) -> None:
    text = f'{START}{_block(lines)}\nshow $A "$B" $N "${{L[@]}}" $# "$@"'
    try:
        script = read_script(text, "run.sh", {}, arguments)
    except InputError:  # a function that calls itself for ever
        return
    if is_known(script):
        assert shows(script) == bash_shows(text, *arguments)


def test_what_an_undecided_conditional_adds_to_a_text_is_left_out_and_told() -> None:
    """`NAME="$NAME more"` says no more than `NAME+=" more"`; another value makes the variable unclear."""
    undecided = 'A="a b"\nB=1\nif grep -q x /proc/cpuinfo; then\n  A="$A \\\n    c"\n  B=16\nfi\nshow $A $B'
    script = read_script(undecided, None, {})
    shown = [script.variables.shown(word) for word in script.commands[-1].words]
    assert shown == ["show", "a", "b", "$B"]
    assert any("nothing is added to A (c)" in warning for warning in script.warnings)

"""What DeepSpeed's own file says of a script's plan, and its file of hosts: both stand beside the script.

Read in DeepSpeed 0.19.8: runtime/config.py (names, defaults), runtime/zero/config.py, launcher/runner.py (hosts). A
script may write its file as it runs (`cat <<EOF > ds_config.json`): then its text is read, with the script's variables.
What is not there is told, and taken as absent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.doors.importing.deepspeed_fields import notes_of_fields
from cpsolver.inputs.document import read_text
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say

_OPTIONS = ("deepspeed_config", "deepspeed-config")
_MOST_LETTERS = 1_000_000
_STAGES = (0, 1, 2, 3)
_OTHER = {"fp16": "bf16", "bf16": "fp16"}
_OFFLOADED = ("optimizer", "param")
WEIGHTS_AWAY = "offload_param"
"""What the arguments have where a file with stage 3 has sharded weights wait on the host; no parser's own name."""
_UNREAD = later(
    "DeepSpeed's own file is not read: what it says of lengths, precision, the host or compression is not in the plan"
)
_WORD = r"(\$\{\w+\}|\$?\w+)"
_STAGE = re.compile(rf'"zero_optimization"\s*:\s*\{{[^{{}}]*?"stage"\s*:\s*"?{_WORD}"?')
_OFFLOAD = re.compile(rf'"offload_(optimizer|param)"\s*:\s*\{{[^{{}}]*?"device"\s*:\s*"{_WORD}"')
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_NAMED = re.compile(r"\$\{?(\w+)\}?")
_MARK = r"<<-?[ \t]*[\"']?(\w+)[\"']?"
_TARGET = r">[ \t]*\"?([^\s\"<>|&;]+)\"?"
_HERE = re.compile(rf"{_MARK}[ \t]*{_TARGET}|{_TARGET}[ \t]*{_MARK}")
"""Where a here-document begins that is written to a file: its mark and the file's name, in either order."""


def add_deepspeed(arguments: Arguments, script: str, text: str = "") -> list[str]:
    """Give the arguments the ZeRO stage and the offload of the file that they name; returns notes.

    The engine reads its file: what --zero-stage says beside it counts where that is not known. `text`: the script's.
    Raises InputError for a file that is no configuration.
    """
    if not {"deepspeed", *_OPTIONS} & arguments.given.keys():
        return []
    named = next((arguments.given[name][-1] for name in _OPTIONS if arguments.given.get(name)), None)
    plain = _COMMENT.sub("", text)
    file = None if named is None else beside(script, named)
    if (said := _said(arguments, named, plain)) is not None:
        return _read(arguments, said, say("the file of DeepSpeed that the script writes"))
    if file is None or _is_written(arguments, named, plain):
        return _written(arguments, _own_text(arguments, named, plain), named)
    return _read(arguments, _content(file), _name_of(script, named or "", file), str(file))


def _read(arguments: Arguments, data: dict[str, Any], called: str, file: str | None = None) -> list[str]:
    """As add_deepspeed, of a file's fields. `called`: what notes call it; `file`: where it stands, for errors."""
    zero, half = _zero(data, file or called)
    stage = zero.get("stage", 0)
    if stage not in _STAGES or isinstance(stage, bool):
        raise InputError(
            Trouble("zero_optimization.stage", "is not one of the choices", stage, "0, 1, 2, 3", file=file or called)
        )
    text = say("{file}: ZeRO stage {stage}", file=called, stage=stage)
    offload = zero.get("offload_optimizer")
    if zero.get("cpu_offload") is True or (isinstance(offload, dict) and offload.get("device") == "cpu"):
        arguments.given.setdefault("optimizer-cpu-offload", ())
    weights = zero.get("offload_param")
    device = weights.get("device", "none") if isinstance(weights, dict) else "none" if not weights else "cpu"
    told = [_taken(arguments, str(stage), text, str(device)), *notes_of_fields(data, called, arguments)]
    if half is not None and {"fp16", "bf16"} & arguments.given.keys() == {_OTHER[half]}:
        arguments.given[half] = arguments.given.pop(_OTHER[half])
        told.append(say("{file}: {half}, whatever --{given} says", file=called, half=half, given=_OTHER[half]))
    return told


def _is_written(arguments: Arguments, named: str | None, text: str) -> bool:
    """Whether the script itself writes the file that it names, whatever stands there before."""
    return any(target == _file_name(arguments, named) for target, *_ in _here_documents(arguments, text))


def _said(arguments: Arguments, named: str | None, text: str) -> dict[str, Any] | None:
    """The fields of the one here-document that a script writes to the file that it names; None where they are not
    known, as the script's variables are not, or it writes that file more than once."""
    name, lines = _file_name(arguments, named), text.splitlines()
    mine = [lines[begin + 1 : end] for target, begin, end in _here_documents(arguments, text) if target == name]
    if len(mine) != 1:
        return None
    filled = _NAMED.sub(lambda each: _value(each[0], arguments) or each[0], "\n".join(mine[0]))
    try:
        data = json.loads(filled)
    except (ValueError, RecursionError):
        return None
    zero = data.get("zero_optimization", {}) if isinstance(data, dict) else None
    if not isinstance(zero, dict) or (stage := str(zero.get("stage", 0))) not in map(str, _STAGES):
        return None
    return {**data, "zero_optimization": {**zero, "stage": int(stage)}}


def _own_text(arguments: Arguments, named: str | None, text: str) -> str:
    """The script's text without the here-documents that it writes to other files than the one that is named."""
    if not (name := _file_name(arguments, named)):
        return text
    lines = text.splitlines()
    for target, begin, end in reversed(list(_here_documents(arguments, text))):
        if target not in (None, name):
            del lines[begin:end]
    return "\n".join(lines)


def _file_name(arguments: Arguments, named: str | None) -> str:
    """The last part of the name that a script has for its file; empty where that is not known."""
    if named is None or arguments.variables.unclear_in(named):
        return ""
    return Path(arguments.variables.shown(named)).name


def _here_documents(arguments: Arguments, text: str) -> Iterator[tuple[str | None, int, int]]:
    """Of each here-document that is written to a file that file's name, the line where it begins, and that of its
    mark, or behind the last line."""
    mark, target, begin, lines = "", None, 0, text.splitlines()
    for number, line in enumerate(lines):
        if not mark and (found := _HERE.search(line)):
            mark, target, begin = found[1] or found[4], _target(found[2] or found[3], arguments), number
        elif mark and line.strip() == mark:
            yield target, begin, number
            mark = ""
    if mark:
        yield target, begin, len(lines)


def _target(written: str, arguments: Arguments) -> str | None:
    """The name of the file that a here-document is written to; None where it is not known."""
    shown = _NAMED.sub(lambda each: arguments.variables.scalars.get(each[1], each[0]), written)
    return None if "$" in shown or arguments.variables.unclear_in(shown) else Path(shown).name


def _written(arguments: Arguments, text: str, named: str | None) -> list[str]:
    """As add_deepspeed, of the one file with a ZeRO stage that the script itself writes."""
    stages = {_value(found[1], arguments) for found in _STAGE.finditer(text)}
    stage = next(iter(stages)) if len(stages) == 1 else ""
    known = stage in map(str, _STAGES)
    if not known and "zero-stage" not in arguments.given:
        return [say("DeepSpeed's own file is not read: its ZeRO stage is taken as 0")]
    offloads = [(found[1], _value(found[2], arguments)) for found in _OFFLOAD.finditer(text)]
    optimizer, away = ({device for of, device in offloads if of == name} == {"cpu"} for name in _OFFLOADED)
    if optimizer:
        arguments.given.setdefault("optimizer-cpu-offload", ())
    if not known:
        return [] if named is None else [say(_UNREAD)]
    told = say("the file of DeepSpeed that the script writes: ZeRO stage {stage}", stage=stage)
    return [_taken(arguments, stage, told, "cpu" if away else "none")]


def _taken(arguments: Arguments, stage: str, text: str, weights: str) -> str:
    """Give the arguments a file's stage; the note on it. `weights`: where its offload_param has these wait."""
    given = arguments.given.get("zero-stage", (stage,))
    arguments.given["zero-stage"] = (stage,)
    if given != (stage,):
        text = say(
            "{text}, whatever --zero-stage {stage} says", text=text, stage=arguments.variables.shown(" ".join(given))
        )
    if weights == "cpu" and stage == "3":
        arguments.given[WEIGHTS_AWAY] = ()
    elif weights != "none" and stage == "3":
        return say("{text}; offload_param is not in the plan: memory is predicted too high", text=text)
    return text


def _value(written: str, arguments: Arguments) -> str:
    """A number or word, or what the variable holds that stands there as the script ends."""
    name = re.fullmatch(r"\$\{?(\w+)\}?", written)
    return written if name is None else arguments.variables.scalars.get(name[1], "")


def beside(script: str, named: str) -> Path | None:
    """A file that a script names, in the script's folder; None where it is not there, or its name is not known.

    A path of another machine counts by its end: by its name in the script's folder, by more of it there or above.
    """
    if script == "<stdin>" or "\ue000" in named:
        return None
    folder, parts = Path(script).parent, Path(named).parts
    places = [folder / named]
    if Path(named).is_absolute():
        above = [folder.absolute(), *list(folder.absolute().parents)[:3]]
        places += [up / Path(*parts[start:]) for start in range(1, len(parts) - 1) for up in above]
        places.append(folder / parts[-1])
    return next(filter(_is_readable, places), None)


def _is_readable(path: Path) -> bool:
    with suppress(OSError):  # a name that is too long for a file
        return path.is_file() and path.stat().st_size < _MOST_LETTERS
    return False


def _name_of(script: str, named: str, file: Path) -> str:
    """A file's name, behind the one that the script has for it where that is another's path."""
    return file.name if file == Path(script).parent / named else f"{named} -> {file}"


def _content(file: Path) -> dict[str, Any]:
    """A file's fields. Raises InputError where it is no configuration."""
    _, text = read_text(file)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(Trouble("", say("is not JSON: {error}", error=error), file=str(file))) from None
    if not isinstance(data, dict):
        raise InputError(Trouble("zero_optimization", "must hold fields", None, file=str(file)))
    return data


def _zero(data: dict[str, Any], file: str) -> tuple[dict[str, Any], str | None]:
    """The section of ZeRO, and the one type of 16 bits that the file has its engine compute in."""
    zero = data.get("zero_optimization", {})
    if not isinstance(zero, dict):
        raise InputError(Trouble("zero_optimization", "must hold fields", zero, file=file))
    on = [half for half in _OTHER if isinstance(data.get(half), dict) and data[half].get("enabled") is True]
    return zero, on[0] if len(on) == 1 else None


def listed_hosts(words: Sequence[str], script: str) -> tuple[int, ...]:
    """Devices of each host in the file that a launcher's --hostfile or -H names; none where that is not there."""
    joined = [part for word in words for part in (word.split("=", 1) if word.startswith("--hostfile=") else [word])]
    named = next((after for before, after in pairwise(joined) if before in ("--hostfile", "-H")), None)
    file = None if named is None else beside(script, named)
    return host_slots(read_text(file)[1]) if file else ()


def host_slots(text: str) -> tuple[int, ...]:
    """The numbers behind `slots=`, a line each."""
    return tuple(int(count) for count in re.findall(r"^[^#\n]*\bslots=(\d{1,6})\b", text, re.MULTILINE))

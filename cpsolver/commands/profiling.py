"""profile: measures the device at hand and writes a chip file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from cpsolver.commands import completion
from cpsolver.commands.common import EXIT_INTERRUPTED, Finite, json_option, write_answer
from cpsolver.commands.help import SpokenCommand
from cpsolver.inputs.language import say

if TYPE_CHECKING:
    from cpsolver.doors.profile.run import Profile
    from cpsolver.doors.profile.shapes import Precision

_EVERY: tuple[Precision, ...] = ("bf16", "fp16", "fp8")
_positive = Finite(min=0, min_open=True)


@click.command(cls=SpokenCommand)
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "npu", "cpu"]),
    default="auto",
    show_default=True,
    help="Which kind of device; auto: the first accelerator, else the CPU.",
)
@click.option(
    "--devices",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Devices for collectives (all of this machine; on the CPU: processes, 1).",
)
@click.option("--output", "-o", metavar="FILE", help="The chip file (the device's name with .yaml).")
@click.option(
    "--replaces",
    metavar="CHIP",
    shell_complete=completion.chips,
    help="The catalogue entry that gives what is not measured (guessed from the device's name).",
)
@click.option(
    "--model",
    default="llama2-7b",
    show_default=True,
    metavar="MODEL",
    help="Whose shapes: a catalogue name or a file.",
    shell_complete=completion.models,
)
@click.option(
    "--seq",
    type=click.IntRange(16, 1 << 20),
    default=4096,
    show_default=True,
    metavar="TOKENS",
    help="Tokens in a sequence.",
)
@click.option("--tp", default="1,2,4,8", show_default=True, metavar="SIZES", help="Tensor-parallel sizes of interest.")
@click.option("--micro-batch", default="1", show_default=True, metavar="SIZES", help="Sequences in a microbatch.")
@click.option(
    "--precision", metavar="NAMES", help="Of bf16, fp16, fp8, with commas (accelerators: all; the CPU: bf16)."
)
@click.option("--peak-tflops", metavar="bf16=X,...", help="Dense peaks, in place of the entry's.")
@click.option("--memory-gb-s", type=_positive, metavar="X", help="Memory's peak bandwidth, in place of the entry's.")
@click.option(
    "--fabric-gb-s", type=_positive, metavar="X", help="Bandwidth between neighbours, one way, in place of the entry's."
)
@click.option(
    "--network-gbit-s",
    type=_positive,
    metavar="X",
    help="Line rate of the network for a device, in place of the entry's.",
)
@click.option(
    "--time-budget",
    type=_positive,
    metavar="SECONDS",
    help="Begin no measurement after so long (300; with --quick 60).",
)
@click.option("--quick", is_flag=True, help="Fewer shapes and repeats: the first of --tp and of --micro-batch.")
@json_option
def profile(as_json: bool, output: str | None, device: str, time_budget: float | None, **options: Any) -> None:
    """Measure this machine's device: products, attention, memory, links, a real layer. Write a chip file for a spec.

    \b
    Example:
      apss-cp profile --model llama2-70b --tp 4,8 -o our-h100.yaml
      apss-cp profile --device cpu --devices 2 --quick --seq 256

    A spec takes the file as cluster: {chips: {our-h100: {file: our-h100.yaml}}}. Needs PyTorch (apss-cp[profile]).
    Each measurement is kept in FILE.journal.jsonl: after Ctrl-C, which writes what there is and exits with 130, the
    same command goes on there. docs/profile.md says what is measured, how, and what the figures mean.
    """
    from cpsolver.doors.profile.report import profile_document, profile_report

    done, target, name = _profiled(options, device, output, time_budget)
    write_answer(as_json, None, lambda: profile_document(done, target), lambda: profile_report(done, target, name))
    if done.measured.interrupted:
        click.get_current_context().exit(EXIT_INTERRUPTED)


def _profiled(
    options: Mapping[str, Any], device: str, output: str | None, budget: float | None
) -> tuple[Profile, str, str]:
    """Measure and write the chip file; what came of it, the file, and the device's name. Raises InputError."""
    from cpsolver.doors.profile.chip_file import guessed_entry
    from cpsolver.doors.profile.device import find_device
    from cpsolver.doors.profile.request import ProfileOptions, resolve_request
    from cpsolver.doors.profile.run import check_output, conclude, journal_of, measure_all
    from cpsolver.doors.profile.settings import settings
    from cpsolver.doors.report.progress import Bar
    from cpsolver.inputs.errors import InputError, Trouble
    from cpsolver.inputs.output import check_writable, deliver

    request = resolve_request(ProfileOptions(**options))
    here = find_device(device)
    wanted = request.wanted
    most = here.count if here.kind != "cpu" else 1024
    if wanted.devices > most:
        raise InputError(
            Trouble(
                "--devices",
                say("this machine has {most}", most=most),
                wanted.devices,
                say("{least} to {most}", least=1, most=most),
            )
        )
    usual = _EVERY if here.kind != "cpu" else _EVERY[:1]
    precisions = wanted.precisions or usual
    wanted = replace(wanted, devices=wanted.devices or here.count, precisions=precisions)
    entry = request.entry or guessed_entry(here.name)
    name = _slug(here.name) if output is None else _slug(output.rpartition("/")[2].removesuffix(".yaml"))
    target = f"{name}.yaml" if output is None else output
    for path in (target, str(journal_of(target))):
        check_writable(path)
    check_output(target)
    seconds = budget or (settings().quick_time_budget_s if wanted.quick else settings().time_budget_s)
    with Bar(say("measuring {device}", device=here.name)) as bar:
        measured = measure_all(request.problem, wanted, here, target, seconds, bar)
    done = conclude(request.problem, wanted, here, entry, request.given, name, measured)
    deliver(done.text.rstrip("\n"), target)
    return done, target, here.name


def _slug(name: str) -> str:
    """A name that can be a file's and a chip's."""
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-.") or "device"

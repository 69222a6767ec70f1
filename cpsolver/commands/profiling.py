"""profile: measures the device at hand and writes a chip file."""

from __future__ import annotations

import click

from cpsolver.commands.common import EXIT_INTERRUPTED, json_option

_positive = click.FloatRange(min=0, min_open=True)


@click.command()
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
    help="The catalogue entry that gives what is not measured (guessed from the device's name).",
)
@click.option(
    "--model", default="llama2-7b", show_default=True, metavar="MODEL", help="Whose shapes: a catalogue name or a file."
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
def profile(as_json: bool, output: str | None, device: str, time_budget: float | None, **options: object) -> None:
    """Measure this machine's device: products, attention, memory, links, a real layer. Write a chip file for a spec.

    \b
    Example:
      apss-cp profile --model llama2-70b --tp 4,8 -o our-h100.yaml
      apss-cp profile --device cpu --devices 2 --quick --seq 256

    A spec takes the file as cluster: {chips: {our-h100: {file: our-h100.yaml}}}. Needs PyTorch (apss-cp[profile]).
    Each measurement is kept in FILE.journal.jsonl: after Ctrl-C, which writes what there is and exits with 130, the
    same command goes on there. docs/profile.md says what is measured, how, and what the figures mean.
    """
    from cpsolver.commands.profile_run import run_profile

    if run_profile(options, device, output, time_budget, as_json):
        click.get_current_context().exit(EXIT_INTERRUPTED)

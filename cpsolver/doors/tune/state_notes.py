"""What a state keeps in words, told in the language spoken: a state is written in English, whoever reads it."""

from __future__ import annotations

from cpsolver.inputs.language import ENGLISH, filled_from, later, say, spoken

KEPT = (
    later("the best plan left, before any trial is measured"),
    later("plan {rank} of {count} by prediction"),
    later("best of draw {count} of constants, after {known}"),
    later("likeliest to be better, after {known}"),
    later("{count} run to learn from"),
    later("{count} runs to learn from"),
    later("a plan more than {gain} faster is left with chance {chance}"),
    later("told so"),
    later("{target} cannot run this plan: {reasons}"),
    later("not started: {error}"),
    later("its supervisor could not be started"),
    later("its folder was removed"),
    later("its supervisor is gone without a result (was the machine restarted?)"),
    later("its supervisor was killed; processes of the trial that were left behind were ended: {count}"),
    later("{file} is damaged"),
    later("ended by Ctrl-C"),
    later("ended by a signal, as schedulers send it,"),
    later("ended at its time limit after {count} measured iteration"),
    later("ended at its time limit after {count} measured iterations"),
    later("ended after {count} measured iteration, which was asked for"),
    later("ended after {count} measured iterations, which were asked for"),
    later("{why} after {count} measured iteration"),
    later("{why} after {count} measured iterations"),
    later("no step time in {log}. Looked for: {forms}"),
    later("no step time: {notes}"),
    later("after {count} measured iteration the command ended with {how}"),
    later("after {count} measured iterations the command ended with {how}"),
    later("{how} (log: {log})"),
    later("signal {name}: {why}"),
    later("signal {name}"),
    later("exit code {code}: {why}"),
    later("exit code {code}"),
    later("perhaps by the host's out-of-memory killer; that is not device memory"),
    later("the log says {figure} of an iteration: no step takes that ({range})"),
    later("the log is of another layout: {differences}. Does the command pass the plan's arguments?"),
    later("{name} is {logged} in the log and {planned} in the plan"),
    later("the one iteration in the log is warm-up (--skip-iterations {skip})"),
    later("all {count} iterations in the log are warm-up (--skip-iterations {skip})"),
    later("the only line covers iterations 1 to {most}, warm-up included: log every one (--log-interval 1)"),
    later("{count} line with skipped iterations left out"),
    later("{count} lines with skipped iterations left out"),
    later("{count} measured iteration had a loss that is not a number"),
    later("{count} measured iterations had a loss that is not a number"),
)
"""Sentences that tuning writes. One that stands before others is looked for before them; fields hold such sentences
too."""
_SEPARATOR = "; "


def retold(text: str) -> str:
    """A note or a reason of the state in the language spoken; as it is where it holds something else."""
    if spoken() == ENGLISH or not text:
        return text
    if found := filled_from(text, KEPT):
        return say(found[0], **{name: retold(value) for name, value in found[1].items()})
    first, _, rest = text.partition(_SEPARATOR)
    return say("; ").join((retold(first), retold(rest))) if rest else text

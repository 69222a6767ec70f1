"""The JSON Schema of what `solve`, `plan` and `evaluate` answer with --json; docs/answer.schema.json holds it.

ANSWER_VERSION (document.py) counts what breaks programs that read an answer: a field that goes, or means something
else. Fields may be added without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, TypeAdapter, create_model

from cpsolver.doors.report.document import ANSWER_VERSION
from cpsolver.doors.report.outlook import MeanRange
from cpsolver.evaluation.evaluation import PARTS
from cpsolver.plans.dimensions import DIMENSIONS, PLAN_FIELDS, Kind
from cpsolver.plans.strategy import RecomputeKind
from cpsolver.profiles.provenance import Basis
from cpsolver.search.result import (
    DeviceCounts,
    EventsRun,
    MeshCounts,
    Recommendation,
    SizeCounts,
    Status,
    StopReason,
    Verification,
)

ABSENT: Any = None
"""The default of a field that is left out where it does not apply."""
Seconds = Annotated[float, Field(description="seconds", ge=0)]
Gib = Annotated[float, Field(description="GiB of one device", ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Places: TypeAlias = dict[str, Any]


class LevelGiven(BaseModel):
    """A level of the network, from the nodes outwards."""

    name: str
    between_units_of: int
    devices: int | None
    reached_gbit_s: float
    latency_us: float


class NetworkOfChips(BaseModel):
    """The network that the spec names, as each chip type meets it."""

    name: str
    in_network_reduction: bool
    levels: dict[str, list[LevelGiven]]


class ChangedChip(BaseModel):
    """What the spec changes of a catalogue's chip, and which fitted factors still hold."""

    fields: list[str]
    fitted: list[str]
    not_fitted: list[str]


class DeadlineGiven(BaseModel):
    """The spec's deadline, and the step time that meets it."""

    tokens: float
    days: float
    step_time_s: Seconds


class ProblemGiven(BaseModel):
    """What was asked, names looked up."""

    model: str
    num_gpus: int
    gpus_per_node: int
    chips: dict[str, Annotated[int, Field(description="the most devices of the type")]]
    global_batch_size: int
    sequence_length: int
    precision: str
    stack: str
    stack_why: str
    stack_foreign: str | None
    objective: Literal["throughput", "cost", "fewest_chips"]
    objective_unit: str
    tokens: float | None
    deadline: DeadlineGiven | None
    idle: bool
    dollars_per_device_hour: dict[str, float] | None
    network: NetworkOfChips = ABSENT
    changed_chips: dict[str, ChangedChip] = ABSENT
    launcher: str | None


class ConstantUsed(BaseModel):
    """A constant that an operator's time rests on, and how it is known."""

    of: str
    value: float
    basis: Basis
    source: str
    runs: int | None


class OperatorPart(BaseModel):
    """An operator of the slowest stage's compute."""

    name: str
    seconds: Seconds
    share: Share
    of_peak: float | None
    basis: Basis | None
    rests_on: list[str]


class Operators(BaseModel):
    """Compute of the slowest stage by operator; the parts sum to `compute_s`."""

    stage: int
    chip: str
    compute_s: Seconds
    unmeasured_share: Share
    parts: list[OperatorPart]
    constants: dict[str, ConstantUsed]


class Matrices(BaseModel):
    """What the matrices of Muon or SOAP cost."""

    stage: int
    matrices_s: Seconds
    padded: float
    padding_gib: Gib
    factors_gib: Gib


class MicrobatchSeconds(BaseModel):
    """Seconds of one microbatch on a stage; they sum to the total."""

    compute: Seconds
    tensor_parallel: Seconds
    recompute: Seconds
    sharding: Seconds
    pipeline_p2p: Seconds
    total: Seconds


class AfterSeconds(BaseModel):
    """Seconds of a step that follow the pipeline."""

    data_parallel: Seconds
    optimizer: Seconds


class StageGib(BaseModel):
    """GiB of one device of a stage; they sum to the total."""

    weights: Gib
    gradients: Gib
    optimizer: Gib
    activations: Gib
    buffers: Gib
    fragments: Gib
    framework: Gib
    total: Gib


class StageGiven(BaseModel):
    """A pipeline stage, in the pipeline's order."""

    chip: str
    layers: int
    recompute: RecomputeKind
    recompute_layers: int
    recompute_modules: list[str]
    microbatch_s: MicrobatchSeconds
    after_pipeline_s: AfterSeconds
    memory_gib: StageGib
    device_memory_gib: Gib
    capacity_gib: Gib


class StageDecisions(BaseModel):
    """Neighbouring stages on one chip type: a number of layers each."""

    chip: str
    layers: list[int]
    recompute: RecomputeKind
    recompute_layers: int | list[int] = ABSENT
    recompute_modules: list[str] = ABSENT
    mesh: dict[str, int] = ABSENT


if TYPE_CHECKING:
    PlanDecisions: TypeAlias = BaseModel
    StepParts: TypeAlias = BaseModel
else:
    _TYPES: dict[Kind, Any] = {"size": int, "size_or_all": int, "flag": bool, "sizes": list[int]}
    _DECISIONS = {
        name: (Literal[one.values] if one.kind == "choice" else _TYPES[one.kind], Field(description=one.about))
        for name, one in ((name, DIMENSIONS[name]) for name in PLAN_FIELDS)
    }
    PlanDecisions = create_model("PlanDecisions", **_DECISIONS, stages=(list[StageDecisions], ...))
    PlanDecisions.__doc__ = "What the plan decides: what `--strategy` takes."
    StepParts = create_model("StepParts", **dict.fromkeys(PARTS, (Seconds, ...)))
    StepParts.__doc__ = "Seconds of a step; they sum to its time."


class PlanNumbers(BaseModel):
    """A plan with what it gives."""

    rank: int
    proven: bool = Field(ABSENT, description="no plan outside the answer is better; of `solve`")
    gap: float | None = Field(ABSENT, description="the most by which another plan may be better; of `solve`")
    added: bool = Field(ABSENT, description="not one of the K best, but recommended; of `solve`")
    step_time_s: Seconds
    step_time_low_s: Seconds
    step_time_high_s: Seconds
    interval_basis: str
    tie_with_best: bool
    probability_fastest: Share
    throughput_tokens_per_s: float
    throughput_tokens_per_s_per_gpu: float
    mfu: float
    devices: int
    idle_devices: int
    dollars_per_million_tokens: float | None
    days: MeanRange | None
    dollars: MeanRange | None
    deadline_probability: Share | None
    microbatches: int
    memory_gib: dict[str, Gib]
    capacity_gib: dict[str, Gib]
    out_of_memory_probability: Share
    trained_parameters: float | None = ABSENT
    padding_share: Share | None = ABSENT
    long_tail_s: Seconds | None = ABSENT
    family: str
    beyond_runs: list[str]
    unmeasured: list[str]
    evidence: list[str]
    breakdown_s: StepParts
    operators: Operators
    matrices: Matrices = ABSENT
    simulated_step_time_s: Seconds | None
    stages: list[StageGiven]
    strategy: PlanDecisions


class OpenSwitchGiven(BaseModel):
    """A switch that the spec does not give: seconds of a step by value."""

    field: str
    taken: str
    step_time_s: dict[str, Seconds]


class RoutingGiven(BaseModel):
    """A step where the busiest device's experts have so many times their share."""

    expert_imbalance: float
    step_time_s: Seconds
    fits: bool


class OpenSwitchesGiven(BaseModel):
    """What the spec leaves open of the first plan's step time."""

    low_s: Seconds
    high_s: Seconds
    switches: list[OpenSwitchGiven]
    natural_routing: list[RoutingGiven] | None


class ProofGiven(BaseModel):
    """How every candidate ended: `considered` is the sum of refused, memory, bounded, solved and open."""

    considered: int
    refused: dict[str, int]
    memory: int
    bounded: int
    solved: int
    open: int
    solver_calls: int
    arrangements: int
    bound_s: float | None
    stop: StopReason
    seconds: Seconds
    solver_seconds: Seconds
    combinations: int
    bound: float | None
    device_counts: DeviceCounts | None
    meshes: MeshCounts | None
    sizes: SizeCounts = Field(ABSENT, description="of microbatches of different sizes, where they are looked for")
    by_events: EventsRun | None
    complete: bool
    gap: float | None


class Versions(BaseModel):
    """What made the answer, and the version of its shape."""

    apss_cp: str | None
    ortools: str | None
    python: str
    answer: Literal[ANSWER_VERSION]  # type: ignore[valid-type]


class SolveAnswer(BaseModel):
    """What `solve --json` and `plan --json` print."""

    status: Status
    problem: ProblemGiven
    plans: list[PlanNumbers]
    recommendation: Recommendation | None
    open_switches: OpenSwitchesGiven | None
    proof: ProofGiven
    verification: Verification = ABSENT
    reasons: list[str]
    versions: Versions


class BrokenRule(BaseModel):
    """A rule that the plan breaks, with numbers."""

    rule: str
    message: str


class EvaluateAnswer(BaseModel):
    """What `evaluate --json` prints."""

    status: Literal["evaluated", "not_evaluated"]
    legal: bool
    problem: ProblemGiven
    plans: list[PlanNumbers]
    open_switches: OpenSwitchesGiven | None
    violations: list[BrokenRule]
    filled_in: Places = ABSENT
    versions: Versions


class TroubleGiven(BaseModel):
    """One thing that is wrong with the input."""

    where: str
    value: str | None
    message: str
    allowed: str | None
    nearest: list[str]
    file: str | None
    line: int | None
    column: int | None


class BadInput(BaseModel):
    """What a command with --json prints where its input is wrong."""

    status: Literal["bad_input"]
    troubles: list[TroubleGiven]


def answer_schema(strict: bool = False) -> dict[str, Any]:
    """The schema of all answers; `strict`: none may have a field that it does not name."""
    adapter: TypeAdapter[Any] = TypeAdapter(SolveAnswer | EvaluateAnswer | BadInput)
    found = adapter.json_schema(mode="validation")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"apss-cp answer {ANSWER_VERSION}"}
    return {**head, **_tidy(found, strict)}


def _tidy(part: Any, strict: bool) -> Any:
    """Without the titles that repeat names, and the defaults of fields that are left out."""
    if isinstance(part, list):
        return [_tidy(one, strict) for one in part]
    if not isinstance(part, dict):
        return part
    kept = {name: value for name, value in part.items() if not (name == "title" and isinstance(value, str))}
    if kept.get("default", 0) is None:
        del kept["default"]
    if "const" in kept:
        kept.pop("enum", None)  # older pydantic says both
    if strict and "properties" in kept:
        kept["additionalProperties"] = False
    return {name: _tidy(value, strict) for name, value in kept.items()}

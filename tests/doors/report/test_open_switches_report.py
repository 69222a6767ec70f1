"""What a spec leaves open of the step time: on the first screen, in the report, on the page, in JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from cpsolver.doors.report.document import dumps, evaluation_document
from cpsolver.doors.report.html.page import evaluation_page
from cpsolver.doors.report.open_switches import open_document, open_line, switch_rows, switches_lines
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.explanation.open_switches import NaturalRouting, OpenSwitch, OpenSwitches, open_switches
from cpsolver.inputs.language import CHINESE, later, speaking
from tests.support.problems import model_spec, problem_of, strategy_of

GRAPHS = OpenSwitch("training.cuda_graph", "graphs", "none", {"none": 20.0, "te": 16.0, "full": 14.0})
DISPATCHER = OpenSwitch(
    "training.moe_dispatcher", "dispatcher", "alltoall", {"alltoall": 20.0, "deepep": 19.7, "hybridep": 19.7}
)
ROUTING = NaturalRouting({1.04: 20.3, 1.5: 25.0}, {1.04: True, 1.5: False})
BOTH = OpenSwitches((GRAPHS, DISPATCHER), 13.9, 20.0, ROUTING)


def test_the_first_screen_names_in_a_line_what_moves_the_step_by_more_than_a_few_percent() -> None:
    (line,) = open_line(BOTH)
    assert line.plain == "Not given: graphs: 13.9 to 20.0 s a step."
    every = ("graphs", "dispatcher", "fp8 attention", "overlap")
    wide = OpenSwitches(tuple(OpenSwitch("", name, "a", {"a": 1.0, "b": 2.0}) for name in every), 1111.0, 9999.0, None)
    (line,) = open_line(wide)
    assert len(line.plain) <= 80
    assert "overlap" in line.plain
    assert not list(open_line(OpenSwitches((DISPATCHER,), 19.7, 20.0, ROUTING)))
    assert not list(open_line(OpenSwitches((), 20.0, 20.0, ROUTING)))
    assert not list(open_line(None))


def test_switches_that_are_narrow_alone_are_named_where_together_they_are_wide() -> None:
    one = OpenSwitch("", "graphs", "none", {"none": 20.0, "full": 19.6})
    (line,) = open_line(OpenSwitches((one, DISPATCHER), 19.3, 20.0, None))
    assert line.plain == "Not given: graphs: 19.3 to 20.0 s a step."


def test_values_of_equal_time_stand_together() -> None:
    assert list(switch_rows(BOTH)) == [
        ("training.cuda_graph", "none", "te 16.0 s, full 14.0 s"),
        ("training.moe_dispatcher", "alltoall", "deepep or hybridep 19.7 s"),
    ]
    together, routing = switches_lines(BOTH)
    assert together.startswith("All at their fastest 13.9 s, all at their slowest 20.0 s")
    assert "has 1.04 to 1.5 times its share (training.expert_imbalance): 20.3 to 25.0 s a step" in routing
    assert routing.endswith("at 1.5 it does not fit in memory.")


def test_what_is_left_open_is_said_in_chinese() -> None:
    with speaking(CHINESE):
        (line,) = open_line(OpenSwitches((replace(GRAPHS, name=later("graphs")),), 13.9, 20.0, ROUTING))
        assert line.plain == "没有指定：CUDA 图：每步 13.9 至 20.0 s。"
        assert [cells[2] for cells in switch_rows(BOTH)][1] == "deepep或hybridep 19.7 s"


def test_the_document_has_all_of_it() -> None:
    found = open_document(BOTH)
    assert found is not None
    assert found["switches"][0] == {"field": GRAPHS.field, "taken": "none", "step_time_s": dict(GRAPHS.steps_s)}
    assert found["natural_routing"][1] == {"expert_imbalance": 1.5, "step_time_s": 25.0, "fits": False}
    assert (found["low_s"], found["high_s"]) == (13.9, 20.0)
    assert open_document(None) is None


def test_evaluate_s_document_and_page_tell_it() -> None:
    problem = problem_of(model=model_spec(moe={"experts": 4, "top_k": 2, "expert_ffn": 512}))
    plan = strategy_of(dp=4, ep=4)
    evaluation = evaluate(problem, plan)
    found = open_switches(problem, plan, evaluation, searched=False)
    assert found is not None
    document = json.loads(dumps(evaluation_document(problem, plan, evaluation, [], found)))
    assert document["open_switches"] == json.loads(json.dumps(open_document(found)))
    page = evaluation_page(problem, plan, evaluation, [])
    assert "Switches that the spec leaves open" in page
    assert "Experts are taken to be evenly loaded" in page

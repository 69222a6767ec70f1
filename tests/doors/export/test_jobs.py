"""Jobs around a launch: every node starts the target's script once, with its rank and the address of node 0."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cpsolver.commands import export as command
from cpsolver.doors.export.jobs import JOBS, facts, label, with_job
from cpsolver.doors.export.launch import EXPORTERS, Launch, exporter
from cpsolver.inputs.errors import InputError
from hw_specs import chip_names, load_chip
from tests.support.problems import chip_spec, problem_of, strategy_of

SELF_STARTING = ("deepspeed", "flagscale", "verl")
MANIFESTS = {"kubernetes": "kubernetes.yaml", "pytorchjob": "pytorchjob.yaml", "volcano": "volcano.yaml"}
RANK = 'printf "%s %s %s\\n" "$NODE_RANK" "$MASTER_ADDR" "$*" >> "$RECORD"\n'


def job(kind: str, mixed: bool = False, target: str = "megatron-lm", gpus: int = 24) -> Launch:
    """24 devices in nodes of 4: six nodes, with two chip types the last two on the other."""
    chips = {"x": chip_spec(vendor="nvidia"), "y": chip_spec(vendor="huawei")}
    problem = problem_of(chips if mixed else {"x": chips["x"]}, gpus=gpus, node=4, batch=24)
    groups = "x:3,3 y:2" if mixed else "x:8"
    plan = strategy_of(groups, flags="fz", dp=8 if mixed else gpus)
    return with_job(problem, plan, exporter(target)(problem, plan), kind)


def written(launch: Launch, folder: Path) -> dict[str, str]:
    """The files in a folder, the target's script one that says who it is; the environment to run them in."""
    for name, text in launch.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    assert launch.node_script is not None
    (folder / launch.node_script).write_text(RANK, encoding="utf-8")
    stubs = folder / "bin"
    stubs.mkdir()
    return {"PATH": f"{stubs}:{os.environ['PATH']}", "RECORD": str(folder / "record"), "HOME": str(folder)}


def stub(folder: Path, name: str, text: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/usr/bin/env bash\n{text}", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def recorded(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "record").read_text(encoding="utf-8").splitlines()
    return sorted((line.split()[0], line.split()[1]) for line in lines)


def test_the_commands_choices_are_the_jobs() -> None:
    assert tuple(JOBS) == command.JOBS


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("target", EXPORTERS)
def test_every_target_has_every_job_or_says_why_not(target: str, kind: str) -> None:
    if target in SELF_STARTING:
        with pytest.raises(InputError, match="starts its nodes itself"):
            job(kind, target=target)
        return
    launch = job(kind, target=target)
    assert launch.main in launch.files
    assert {"job.env", "node.sh", launch.node_script} <= launch.files.keys()


@pytest.mark.parametrize("kind", ["sbatch", "ssh"])
@pytest.mark.parametrize("mixed", [False, True])
def test_scripts_are_bash(kind: str, mixed: bool) -> None:
    for name, text in job(kind, mixed).files.items():
        if name.endswith((".sh", ".env", ".sbatch")):
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)


SRUN = """echo "$@" > "$HOME/srun"
while [ "$1" != bash ]; do shift; done
for rank in 0 1 2 3 4 5; do SLURM_PROCID=$rank "$@" || exit 7; done
"""


@pytest.mark.parametrize("mixed", [False, True])
def test_slurm_starts_every_node_once(mixed: bool, tmp_path: Path) -> None:
    environment = written(job("sbatch", mixed), tmp_path)
    stub(tmp_path, "srun", SRUN)
    stub(tmp_path, "scontrol", 'test "$1 $2" = "show hostnames" && printf "%s-a\\n%s-b\\n" "$3" "$3"\n')
    names = {"SLURM_JOB_NODELIST": "all", "SLURM_JOB_NODELIST_HET_GROUP_0": "zero", "SLURM_SUBMIT_DIR": str(tmp_path)}
    subprocess.run(["bash", "job.sbatch"], cwd=tmp_path, env={**environment, **names}, check=True)
    assert recorded(tmp_path) == [(str(rank), "zero-a" if mixed else "all-a") for rank in range(6)]
    assert ("--het-group=0-1" in (tmp_path / "srun").read_text(encoding="utf-8")) is mixed


def test_slurm_has_a_component_a_chip_type() -> None:
    """Six nodes: four of x, for two stages of eight devices, and two of y."""
    parts = job("sbatch", mixed=True).files["job.sbatch"].split("#SBATCH hetjob\n")
    assert [part.count("#SBATCH --nodes=4\n") for part in parts] == [1, 0]
    assert [part.count("#SBATCH --nodes=2\n") for part in parts] == [0, 1]
    assert all("#SBATCH --gres=gpu:4\n" in part for part in parts)
    alone = job("sbatch").files["job.sbatch"]
    assert "hetjob" not in alone
    assert "#SBATCH --nodes=6\n" in alone


@pytest.mark.parametrize(("restarted", "requeued"), [("0", True), ("2", True), ("3", False)])
def test_slurm_starts_a_failed_run_anew_three_times(restarted: str, requeued: bool, tmp_path: Path) -> None:
    environment = written(job("sbatch"), tmp_path)
    (tmp_path / "train.sh").write_text("exit 5\n", encoding="utf-8")
    stub(tmp_path, "srun", SRUN)
    stub(tmp_path, "scontrol", 'echo "$@" >> "$HOME/scontrol"; echo a\n')
    slurm = {"SLURM_JOB_NODELIST": "all", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "9"}
    environment |= {**slurm, "SLURM_RESTART_COUNT": restarted}
    done = subprocess.run(["bash", "job.sbatch"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 7
    assert ("requeue 9" in (tmp_path / "scontrol").read_text(encoding="utf-8")) is requeued


SSH = 'while [ "${1#-}" != "$1" ]; do case $1 in -o) shift 2 ;; *) shift ;; esac; done\nshift\nexec bash -c "$1"\n'


def test_ssh_starts_every_node_once_with_the_users_arguments(tmp_path: Path) -> None:
    environment = written(job("ssh", mixed=True), tmp_path)
    stub(tmp_path, "ssh", SSH)
    with (tmp_path / "job.env").open("a", encoding="utf-8") as file:
        file.write("TRAIN_ARGS=(--lr '1e-4 or so' --save \"a;b\")\n")
    subprocess.run(["bash", "ssh.sh"], cwd=tmp_path, env=environment, check=True)
    assert recorded(tmp_path) == [(str(rank), "host0") for rank in range(6)]
    first = (tmp_path / "record").read_text(encoding="utf-8").splitlines()[0]
    assert first.endswith("--lr 1e-4 or so --save a;b")
    assert len(list((tmp_path / "logs").iterdir())) == 6


def test_ssh_ends_where_nodes_fail_as_often_as_they_may(tmp_path: Path) -> None:
    environment = {**written(job("ssh"), tmp_path), "MAX_RESTARTS": "1"}
    (tmp_path / "train.sh").write_text(RANK + "exit 5\n", encoding="utf-8")
    stub(tmp_path, "ssh", SSH)
    done = subprocess.run(["bash", "ssh.sh"], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count(b"a node failed") == 2


def test_ssh_wants_as_many_hosts_as_the_plan_has_nodes(tmp_path: Path) -> None:
    environment = written(job("ssh"), tmp_path)
    (tmp_path / "hosts.txt").write_text("one # x\n\n# two\n", encoding="utf-8")
    done = subprocess.run(
        ["bash", "ssh.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "hosts.txt has 1 hosts, and the plan 6 nodes" in done.stderr


def test_a_node_keeps_its_output_where_it_is_told(tmp_path: Path) -> None:
    environment = written(job("ssh"), tmp_path)
    (tmp_path / "train.sh").write_text("echo out; echo err >&2\n", encoding="utf-8")
    environment |= {"NODE_RANK": "2", "MASTER_ADDR": "a", "LOG_DIR": str(tmp_path / "kept")}
    subprocess.run(["bash", str(tmp_path / "node.sh")], cwd="/", env=environment, check=True, capture_output=True)
    assert sorted((tmp_path / "kept" / "node-2.log").read_text(encoding="utf-8").split()) == ["err", "out"]


# Kubernetes


def documents(kind: str, mixed: bool = False, **more: Any) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all(job(kind, mixed, **more).files[MANIFESTS[kind]]))


def pods(kind: str, mixed: bool = False) -> list[tuple[int, dict[str, Any]]]:
    """How many pods of each sort, and what they are."""
    last = [each["spec"] for each in documents(kind, mixed) if each["kind"] not in ("ConfigMap", "Service")]
    if kind == "kubernetes":
        return [(spec["completions"], spec["template"]["spec"]) for spec in last]
    sorts = last[0]["tasks"] if kind == "volcano" else last[0]["pytorchReplicaSpecs"].values()
    return [(each["replicas"], each["template"]["spec"]) for each in sorts]


NUMBERED = {"kubernetes": "JOB_COMPLETION_INDEX", "volcano": "VC_TASK_INDEX"}


@pytest.mark.parametrize(
    ("kind", "mixed"), [("kubernetes", False), ("kubernetes", True), ("volcano", False), ("volcano", True)]
)
def test_pods_number_the_nodes_through(kind: str, mixed: bool, tmp_path: Path) -> None:
    environment = written(job(kind, mixed), tmp_path)
    for count, pod in pods(kind, mixed):
        shell, option, text, *words = pod["containers"][0]["command"]
        for index in range(count):
            told = [shell, option, text.replace("/plan/", f"{tmp_path}/"), *words]
            subprocess.run(told, env={**environment, NUMBERED[kind]: str(index)}, check=True)
    first = {"kubernetes": "apss-custom{}-0.apss-custom", "volcano": "apss-custom-nodes-0-0.apss-custom"}[kind]
    address = first.format("-0" if mixed else "")
    assert recorded(tmp_path) == [(str(rank), address) for rank in range(6)]


def test_a_pytorchjob_leaves_ranks_to_the_operator(tmp_path: Path) -> None:
    environment = written(job("pytorchjob"), tmp_path)
    assert [count for count, _ in pods("pytorchjob")] == [1, 5]
    for rank, (_, pod) in enumerate(pods("pytorchjob")):
        (container,) = pod["containers"]
        assert container["name"] == "pytorch"  # the operator looks for it by that name
        told = [word.replace("/plan/", f"{tmp_path}/") for word in container["command"]]
        given = {"RANK": str(rank), "MASTER_ADDR": "of-the-operator"}
        subprocess.run(told, env={**environment, **given}, check=True)
    assert recorded(tmp_path) == [("0", "of-the-operator"), ("1", "of-the-operator")]


@pytest.mark.parametrize("kind", MANIFESTS)
def test_manifests_hold_the_files_as_they_are(kind: str) -> None:
    launch = job(kind, target="loongforge")
    config = next(
        each for each in YAML(typ="safe").load_all(launch.files[MANIFESTS[kind]]) if each["kind"] == "ConfigMap"
    )
    assert config["data"] == {name: text for name, text in launch.files.items() if name != MANIFESTS[kind]}
    volumes = {volume["name"]: volume for _, pod in pods(kind) for volume in pod["volumes"]}
    assert volumes["plan"]["configMap"]["name"] == config["metadata"]["name"]


@pytest.mark.parametrize("kind", ["kubernetes", "volcano"])
def test_chip_types_get_nodes_and_devices_of_their_own(kind: str) -> None:
    (many, x), (few, y) = pods(kind, mixed=True)
    assert (many, few) == (4, 2)
    assert [pod["nodeSelector"] for pod in (x, y)] == [{"accelerator": "x"}, {"accelerator": "y"}]
    limits = [pod["containers"][0]["resources"]["limits"] for pod in (x, y)]
    assert limits == [{"nvidia.com/gpu": 4}, {"huawei.com/Ascend910": 4}]
    assert all("nodeSelector" not in pod for _, pod in pods(kind))


def test_a_pytorchjob_of_two_chip_types_is_refused() -> None:
    with pytest.raises(InputError, match="workers of one kind"):
        job("pytorchjob", mixed=True)


def test_a_node_of_two_chip_types_and_an_unknown_job_are_refused() -> None:
    problem = problem_of({"x": chip_spec(), "y": chip_spec()}, gpus=4, node=4)
    plan = strategy_of("x:4 y:4", flags="fz", dp=2)
    launch = exporter("megatron-lm")(problem, plan)
    with pytest.raises(InputError, match="a node of 4 devices"):
        with_job(problem, plan, launch, "ssh")
    with pytest.raises(InputError, match="sbatch"):
        with_job(problem, plan, launch, "sbach")


def test_every_vendor_of_the_catalogue_has_a_device_plugin() -> None:
    vendors = {load_chip(name).vendor for name in chip_names()}
    assert vendors == facts()["resources"].keys()
    assert all(entry.keys() == {"resource", "source", "confidence"} for entry in facts()["resources"].values())


def test_an_unknown_vendors_resource_is_the_users() -> None:
    problem = problem_of({"x": chip_spec()}, gpus=4, node=4)
    plan = strategy_of("x:8", flags="fz", dp=4)
    launch = with_job(problem, plan, exporter("megatron-lm")(problem, plan), "kubernetes")
    assert any("example.com/accelerator, for x" in note for note in launch.notes)
    assert "example.com/accelerator: 4" in launch.files["kubernetes.yaml"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("llama3.1-8b", "llama3-1-8b"), ("", "plan"), ("$(x)`\n", "x"), ("中", "plan"), ("a" * 60, "a" * 40)],
)
def test_labels(name: str, wanted: str) -> None:
    assert label(name) == wanted

"""Jobs against the validators of those who run them: ShellCheck, Kubernetes' schemas, Kubeflow's own models."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.doors.export.test_jobs import MANIFESTS, SELF_STARTING, documents, job, pods

TARGETS = ("megatron-lm", "mindspeed-llm", "loongforge", "megatron-bridge", "torchtitan", "accelerate")
MIXED = [("sbatch", True), ("ssh", True), ("sbatch", False), ("ssh", False)]
VERSION = "1.33"
"""Of Kubernetes: any since 1.24 has these kinds."""


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@pytest.mark.parametrize(("kind", "mixed"), MIXED)
def test_shellcheck_has_nothing_to_say(kind: str, mixed: bool, tmp_path: Path) -> None:
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("no shellcheck")
    for target in TARGETS if not mixed else TARGETS[:1]:
        assert target not in SELF_STARTING
        for name, text in job(kind, mixed, target).files.items():
            if name.endswith((".sh", ".sbatch", ".env")):
                path = tmp_path / name
                path.write_text(text, encoding="utf-8")
                # SC2016: words for another shell stand in single quotes; SC2034: job.env is read by others; SC2155:
                # a folder that does not exist is not asked for
                command = [program, "--shell=bash", "--exclude=SC2016,SC2034,SC2155", str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{target} {name}\n{done.stdout}"


def _valid(resource: dict[str, Any]) -> None:
    import kubernetes_validate

    kubernetes_validate.validate(resource, VERSION, strict=True)


@pytest.mark.skipif(not _has("kubernetes_validate"), reason="no kubernetes-validate")
@pytest.mark.parametrize(("kind", "mixed"), [("kubernetes", True), ("volcano", True), *((k, False) for k in MANIFESTS)])
def test_manifests_keep_kubernetes_schemas(kind: str, mixed: bool) -> None:
    """Kubernetes' own kinds as they stand, and the pods of the others."""
    for document in documents(kind, mixed):
        if "." not in document["apiVersion"]:
            _valid(document)
    for _, pod in pods(kind, mixed):
        _valid({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod})


@pytest.mark.skipif(not _has("kubeflow"), reason="no kubeflow-training")
def test_kubeflows_model_reads_the_pytorchjob_whole() -> None:
    from kubeflow.training import ApiClient, models

    document = documents("pytorchjob")[1]

    class Answer:
        data = json.dumps(document)

    read = ApiClient().deserialize(Answer(), models.KubeflowOrgV1PyTorchJob)
    specs = read.spec.pytorch_replica_specs
    assert {name: replica.replicas for name, replica in specs.items()} == {"Master": 1, "Worker": 5}
    assert read.spec.run_policy.backoff_limit == 3
    for replica in document["spec"]["pytorchReplicaSpecs"].values():
        limits = replica["template"]["spec"]["containers"][0]["resources"]["limits"]
        limits |= {name: str(amount) for name, amount in limits.items()}  # quantities are text there
    assert ApiClient().sanitize_for_serialization(read) == document


VOLCANO = {
    "spec": {
        *("maxRetry", "minAvailable", "minSuccess", "networkTopology", "plugins", "policies", "priorityClassName"),
        *("queue", "runningEstimate", "schedulerName", "tasks", "ttlSecondsAfterFinished", "volumes"),
    },
    "task": {
        *("dependsOn", "maxRetry", "minAvailable", "name", "partitionPolicy", "policies", "replicas", "template"),
        "topologyPolicy",
    },
    "policy": {"action", "event", "events", "exitCode", "timeout"},
}
"""Fields of config/crd/volcano/bases/batch.volcano.sh_jobs.yaml in volcano-sh/volcano (05e03720)."""


@pytest.mark.parametrize("mixed", [False, True])
def test_volcanos_job_has_fields_of_its_definition(mixed: bool) -> None:
    spec = documents("volcano", mixed)[1]["spec"]
    assert spec.keys() <= VOLCANO["spec"]
    assert all(task.keys() <= VOLCANO["task"] for task in spec["tasks"])
    assert all(policy.keys() <= VOLCANO["policy"] for policy in spec["policies"])
    assert spec["minAvailable"] == sum(task["replicas"] for task in spec["tasks"])


def test_kubectl_reads_what_yaml_1_1_reads() -> None:
    """kubectl's reader is of YAML 1.1: no word may be a truth value there."""
    for kind, name in MANIFESTS.items():
        text = job(kind).files[name]
        newer, older = YAML(typ="safe"), YAML(typ="safe")
        older.version = (1, 1)
        assert list(newer.load_all(text)) == list(older.load_all(text))

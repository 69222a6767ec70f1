"""Jobs of Kubernetes: its own indexed jobs, Kubeflow's PyTorchJob and Volcano's job, a group of pods a chip type.

Read in the references of batch/v1 (Indexed completion, a headless service for names), kubeflow/training-operator
(kubeflow.org_pytorchjobs.yaml: one master, workers; RANK and MASTER_ADDR given to pods) and volcano-sh/volcano
(batch.volcano.sh_jobs.yaml; plugins env and svc: VC_TASK_INDEX, and pods called <job>-<task>-<index> under <job>).
"""

from __future__ import annotations

from io import StringIO
from typing import Any

from cpsolver.doors.export.jobs import Job, NodeGroup, default, facts
from cpsolver.doors.export.launch import refuse
from cpsolver.inputs.errors import one_line
from cpsolver.inputs.language import later, say

IMAGE = "registry.example.com/your-image:tag"
_UNKNOWN = "example.com/accelerator"
_CLAIMS = {"data": "training-data", "checkpoints": "training-checkpoints"}
"""Folders that pods see under / -> the claims that they are, by names that the user gives."""
_TO_FILL = later("image (one for each group of pods), the claims training-data and training-checkpoints, and job.env")


def indexed_jobs(job: Job) -> tuple[dict[str, str], tuple[str, ...]]:
    """A job of batch/v1 for each chip type, their pods numbered through, under one headless service."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.name},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": job.name}},
    }
    jobs = [_indexed(job, group) for group in job.groups]
    return _files("kubernetes.yaml", job, [_config(job), service, *jobs])


def _indexed(job: Job, group: NodeGroup) -> dict[str, Any]:
    rank = f"$(({group.first} + JOB_COMPLETION_INDEX))"
    pod = _pod(job, group, rank, f"{_name(job, job.groups[0])}-0.{job.name}")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": _name(job, group), "labels": {"app": job.name}},
        "spec": {
            "completionMode": "Indexed",
            "completions": group.nodes,
            "parallelism": group.nodes,
            "backoffLimit": default("restarts") * group.nodes,  # it counts pods, and a failure takes all of them along
            "template": {
                "metadata": {"labels": {"app": job.name}},
                "spec": {"subdomain": job.name, "restartPolicy": "Never", **pod},
            },
        },
    }


def pytorch_job(job: Job) -> tuple[dict[str, str], tuple[str, ...]]:
    """Kubeflow's PyTorchJob. Raises CannotExpress for several chip types: all its workers are alike."""
    if len(job.groups) > 1:
        chips = ", ".join(one_line(group.chip) for group in job.groups)
        refuse(
            [
                say(
                    "a PyTorchJob has workers of one kind, and the plan {chips}: --job kubernetes or volcano",
                    chips=chips,
                )
            ]
        )
    (group,) = job.groups

    def replicas(count: int) -> dict[str, Any]:
        pod = _pod(job, group, "$RANK", "$MASTER_ADDR", container="pytorch")
        return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}

    workers = {"Worker": replicas(group.nodes - 1)} if group.nodes > 1 else {}
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": job.name},
        "spec": {
            "runPolicy": {"backoffLimit": default("restarts"), "cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": {"Master": replicas(1), **workers},
        },
    }
    return _files("pytorchjob.yaml", job, [_config(job), document])


def volcano_job(job: Job) -> tuple[dict[str, str], tuple[str, ...]]:
    """Volcano's job: all pods are placed together, and start anew together where one fails."""
    tasks = [
        {
            "name": _task(group),
            "replicas": group.nodes,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    **_pod(
                        job,
                        group,
                        f"$(({group.first} + VC_TASK_INDEX))",
                        f"{job.name}-{_task(job.groups[0])}-0.{job.name}",
                    ),
                }
            },
        }
        for group in job.groups
    ]
    document = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": job.name},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": job.nodes,
            "maxRetry": default("restarts"),
            "plugins": {"env": [], "svc": []},
            "policies": [
                {"event": "PodFailed", "action": "RestartJob"},
                {"event": "PodEvicted", "action": "RestartJob"},
            ],
            "tasks": tasks,
        },
    }
    return _files("volcano.yaml", job, [_config(job), document])


def _name(job: Job, group: NodeGroup) -> str:
    return job.name if len(job.groups) == 1 else f"{job.name}-{group.first}"


def _task(group: NodeGroup) -> str:
    return f"nodes-{group.first}"


def _config(job: Job) -> dict[str, Any]:
    """All files of the launch, as a folder that every pod mounts."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{job.name}-files"},
        "data": dict(job.launch.files),
    }


def _pod(job: Job, group: NodeGroup, rank: str, first: str, container: str = "train") -> dict[str, Any]:
    """A node: one container with all its devices. `rank` and `first`, of this node and of node 0, are words of bash."""
    start = f'export NODE_RANK={rank} MASTER_ADDR={first}; exec bash /plan/node.sh "$@"'
    folders = [
        {"name": "plan", "mountPath": "/plan"},
        {"name": "shm", "mountPath": "/dev/shm"},  # between processes of a node: loaders of data, NCCL
        *({"name": name, "mountPath": f"/{name}"} for name in _CLAIMS),
    ]
    main = {
        "name": container,
        "image": IMAGE,
        "command": ["bash", "-c", start, "node"],
        "ports": [{"name": "master", "containerPort": default("port")}],
        "resources": {"limits": {_resource(group.vendor): group.devices}},
        "volumeMounts": folders,
    }
    chosen = {"nodeSelector": {"accelerator": group.label}} if len(job.groups) > 1 else {}
    volumes: list[dict[str, Any]] = [
        {"name": "plan", "configMap": {"name": f"{job.name}-files"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        *({"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in _CLAIMS.items()),
    ]
    return {**chosen, "containers": [main], "volumes": volumes}


def _resource(vendor: str) -> str:
    entry = facts()["resources"].get(vendor)
    return str(entry["resource"]) if entry else _UNKNOWN


def _files(name: str, job: Job, documents: list[dict[str, Any]]) -> tuple[dict[str, str], tuple[str, ...]]:
    head = f"# {job.title}.\n# Fill in: {_TO_FILL}.\n"
    if len(job.groups) > 1:
        head += "# Nodes carry the label accelerator=<the group's>; each chip type may need an image of its own.\n"
    told = say("kubectl apply -f {name}; fill in {all} (a file of the ConfigMap) first", name=name, all=say(_TO_FILL))
    notes = [told]
    if len(job.groups) > 1:
        wanted = ", ".join(f"{group.label} ({one_line(group.chip)})" for group in job.groups)
        notes.append(say("label the nodes: accelerator={wanted}", wanted=wanted))
    unknown = [one_line(group.chip) for group in job.groups if _resource(group.vendor) == _UNKNOWN]
    if unknown:
        notes.append(
            say(
                "put the resource of your device plugin in place of {unknown}, for {chips}",
                unknown=_UNKNOWN,
                chips=", ".join(unknown),
            )
        )
    return {name: head + _yaml(documents)}, tuple(notes)


def _yaml(documents: list[dict[str, Any]]) -> str:
    from ruamel.yaml import YAML
    from ruamel.yaml.scalarstring import LiteralScalarString

    writer = YAML()
    writer.width = 4096
    writer.indent(mapping=2, sequence=4, offset=2)
    out = StringIO()
    for document in documents:
        if document["kind"] == "ConfigMap":
            document["data"] = {name: LiteralScalarString(text) for name, text in document["data"].items()}
    writer.dump_all(documents, out)
    return out.getvalue()

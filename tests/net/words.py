"""What the commands say that need no plan: help, catalogues, schema, the starter, the seed tool's flags."""

from __future__ import annotations

from tests.net.case import Case, example

COMMANDS = (
    "plan",
    "solve",
    "search",
    "evaluate",
    "check",
    "explain",
    "compare",
    "batch",
    "export",
    "ranks",
    "import",
    "validate",
    "tune",
    "calibrate",
    "profile",
    "models",
    "chips",
    "stacks",
    "init",
    "schema",
)
SEARCH = "search --model-name llama2-7b --gpu-infos a800:8,h800:8 --num-gpus 16 --global-batch-size 32 --top 2"
SWEEP = {
    "base": {
        "model": "llama2-7b",
        "cluster": {"num_gpus": 8, "chips": "a800"},
        "training": {"global_batch_size": 32, "sequence_length": 2048},
        "search": {"top": 1, "pin": {"cp": 1, "pp": 1, "flash_attention": True}},
    },
    "grid": {"cluster.num_gpus": [8, 16], "training.global_batch_size": [32, 48]},
}


def cases() -> list[Case]:
    """Every command's help, the catalogues, and what goes wrong before a command begins."""
    asked: dict[str, tuple[str, ...]] = {
        "help": ("--help",),
        "no such command": ("solv",),
        "no such option": ("solve", "--tpo"),
    }
    asked |= {f"help of {name}": (name, "--help") for name in COMMANDS}
    asked |= {name: (name,) for name in ("models", "chips", "stacks", "schema")}
    asked |= {
        "a model": ("models", "deepseek-v3-671b"),
        "a chip": ("chips", "h800"),
        "a stack": ("stacks", "mindspeed"),
    }
    asked |= {f"{name} as JSON": (name, "--json") for name in ("models", "chips", "stacks")}
    asked |= {"no such model": ("models", "lama"), "the starter": ("init", "spec.yaml")}
    asked |= {
        "no such file": ("solve", "nowhere.yaml"),
        "no such plan": ("evaluate", "spec.yaml", "-s", "nowhere.yaml"),
    }
    files = {"no such plan": {"spec.yaml": example("seed-published.yaml")}}
    found = [Case("words", name, args, files.get(name, {}), True) for name, args in asked.items()]
    found += [Case("words", "the seed tool's flags", tuple(SEARCH.split()))]
    found += [Case("words", "published runs, predicted", ("validate", "--json"))]
    found += [Case("words", "published runs, predicted, as text", ("validate",))]
    sweep = ("batch", "sweep.yaml", "--csv", "rows.csv", "-j", "1")
    return [*found, Case("words", "a sweep", sweep, {"sweep.yaml": SWEEP})]

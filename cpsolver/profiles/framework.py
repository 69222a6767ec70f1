"""Framework profiles: what a training framework can run, fact by fact (facts.py), each with its source.

A launcher profile states every fact of a framework's own parser and schedules; a spec names one as its `launcher`. A
stack says how fast a framework runs a plan and what it keeps, and most stacks leave to the launcher what is run. One
that trains with sharded parameters (FSDP, ZeRO-3) is one framework at one time, and its profile states what that had.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cpsolver.inputs.data import package_data
from cpsolver.inputs.errors import InputError, Trouble, nearest_names
from cpsolver.inputs.language import later
from cpsolver.plans.strategy import RecomputeKind
from cpsolver.profiles import rarer_facts, sharing_facts  # noqa: F401 (registers them)
from cpsolver.profiles.facts import Facts
from models_zoo import SPECIAL_LAYERS, Architecture, special_layers
from models_zoo.vision import EncoderFamily

_FOLDER = Path(__file__).parent / "launchers"
_PLAIN = "null; of models without experts or latent attention, of whole layers, dropout 0, all_to_all false, 16 bits"


class Framework(Facts):
    """The facts of a framework: a launcher profile's, a stack's, or what two of them both run.

    `stack`: the profile of a launcher's own software stack, where it has one.
    """

    name: str
    title: str
    sources: dict[str, str]
    stack: str | None = None

    @property
    def recompute_per_chip(self) -> bool:
        """Stages may recompute differently."""
        return bool(self.recompute_by_stage)

    def untrained(self, model: Architecture) -> tuple[str, ...]:
        """What the model has beside attention and feed-forward blocks that the framework lacks, in words."""
        return tuple(SPECIAL_LAYERS[name] for name in special_layers(model) if name not in self.special_layers)

    def lacks(self, adapters: Literal["plain", "any"] | None, packed: bool) -> dict[str, str]:
        """Fields of `training` that ask for adapters or packed sequences it does not have, and what they may be."""
        found = {}
        if adapters is not None and self.adapters not in (adapters, "any"):
            found["lora"] = "null" if self.adapters == "none" else _PLAIN
        return {**found, "lengths": "null, or packing false"} if packed and not self.packed_sequences else found

    def beside(self, encoder: EncoderFamily | None) -> Framework:
        """What it runs with an encoder of images of that family on the first stage; itself where there is none."""
        own = {} if encoder is None else self.encoders.get(encoder, {})
        return Framework.model_validate({**dict(self), **own}) if own else self

    def kinds(self, wanted: tuple[RecomputeKind, ...]) -> tuple[RecomputeKind, ...]:
        """The kinds of recomputation among those wanted that it has."""
        return tuple(kind for kind in wanted if kind == "none" or kind in self.recompute)


def launcher_names() -> tuple[str, ...]:
    """Names of all profiles that come with the package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@lru_cache
def load_launcher(name: str) -> Framework:
    """The launcher profile of that name; raises InputError naming the nearest one."""
    if name not in launcher_names():
        trouble = Trouble(
            where="launcher",
            value=name,
            message=later("unknown launcher"),
            allowed=", ".join(launcher_names()),
            nearest=nearest_names(name, launcher_names()),
            path=("launcher",),
        )
        raise InputError((trouble,))
    fields = _read(name)
    own = {} if fields.get("stack") is None else {"stack": fields["stack"]}
    return _framework(own, fields["name"], fields["title"], fields["facts"])


def stack_framework(name: str, title: str, facts: Mapping[str, Mapping[str, Any]]) -> Framework:
    """What a stack's framework runs: the facts that its profile states; the others rule nothing out."""
    return _framework(_UNSTATED, name, title, facts)


def both(first: Framework | None, second: Framework | None) -> Framework | None:
    """The facts of what two frameworks both run, for the search; None: either runs anything."""
    if first is None or second is None:
        return second if first is None else first
    facts = {name: _stricter(name, getattr(first, name), getattr(second, name)) for name in Facts.model_fields}
    return Framework(name=f"{first.name} with {second.name}", title=first.title, sources={}, **facts)


def _framework(others: Mapping[str, Any], name: str, title: str, facts: Mapping[str, Mapping[str, Any]]) -> Framework:
    """A profile from what it states, a value with its source each, and what it has of `others` for what it does not."""
    values = {fact: entry["value"] for fact, entry in facts.items()}
    sources = {fact: entry["source"] for fact, entry in facts.items()}
    return Framework.model_validate({**others, **values, "name": name, "title": title, "sources": sources})


def _choices(fact: str) -> tuple[Any, ...]:
    """What a fact may be, the strictest first; empty where it is no choice."""
    kind = Facts.model_fields[fact].annotation
    return get_args(kind) if get_origin(kind) is Literal else ()


def _unstated(fact: str) -> Any:
    """What a fact is where a stack does not state it."""
    field = Facts.model_fields[fact]
    if not field.is_required():
        return field.default
    extra: Any = field.json_schema_extra
    if extra["unstated"] is not None:
        return extra["unstated"]
    if field.annotation is bool:
        return True
    return _choices(fact)[-1] if _choices(fact) else get_args(get_args(field.annotation)[0])


_UNSTATED = {fact: _unstated(fact) for fact in Facts.model_fields}


def _stricter(fact: str, one: Any, other: Any) -> Any:
    if isinstance(one, bool):
        return one and other
    if isinstance(one, tuple):
        return tuple(value for value in one if value in other)
    return min(one, other, key=_choices(fact).index) if _choices(fact) else one  # a flag's name


def _read(name: str) -> dict[str, Any]:
    """A profile's fields; a profile that extends another has its facts where it states none of its own."""
    fields: dict[str, Any] = dict(package_data(_FOLDER / f"{name}.yaml"))
    base = fields.pop("extends", None)
    if base is not None:
        fields["facts"] = {**_read(base)["facts"], **(fields.get("facts") or {})}
    return fields

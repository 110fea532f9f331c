"""The plan of a sweep, a TOML file, and its units of work.

compress    (voice, scheme)           the compressed model
reference   (voice, shard)            the FP32 model's speech, recognized; of all schemes
candidate   (voice, scheme, shard)    the compressed model's speech, recognized
time        (voice, scheme)           both models timed, on a machine that does nothing else
report      (voice, scheme)           the evaluation, from all of these

A unit states what it needs, and has a key, the hash of everything that decides its result.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from heapq import heapreplace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import Field, field_validator

from tts_compress.config import Config, ConfigFile, data_file, read_config
from tts_compress.errors import RecipeError
from tts_compress.evaluation.gates import read_gates
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.suite import Suite, read_suite
from tts_compress.families import families
from tts_compress.models import family_of
from tts_compress.recipes.formats import find_scheme
from tts_compress.recipes.recipe import Recipe, find_recipe, read_calibration_set, scheme_of

_MAGIC = frozenset("*?[")

_HOURS_OF_A_YEAR = 8_760
"""Longest time that can be waited for, and longer than any unit."""

Kind: TypeAlias = Literal["compress", "reference", "candidate", "time", "report"]

PHASES: Mapping[str, tuple[Kind, ...]] = {
    "compress": ("compress",),
    "speech": ("reference", "candidate"),
    "time": ("time",),
    "report": ("report",),
}
"""Kinds of units that are done at the same time. Each phase needs the results of those before;
units that time have machines of their own."""

_FORMAT = 1
"""Goes up when units do something else than before."""

_EARS = {"recognizer", "measures"}
"""Fields of an identity that decide speech as it is analysed, not how it is made or timed."""


class Environment(Config):
    """The Python environment of a family whose packages clash with those of others."""

    python: str | None = None
    """Its interpreter, at the same place on every machine; by default the one that runs this."""

    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Ray's `runtime_env` of the tasks that do its units, such as `{pip = ["f5-tts"]}`."""


class PlannedScheme(Config):
    """A scheme, or a recipe of the user's."""

    name: str
    scheme: str
    recipe: str | None = None
    """Absolute path of a recipe's TOML file; None for the shipped recipe."""


class Settings(Config):
    """Settings of the evaluation of pairs."""

    any_language: bool = False
    speaker: str | None = None
    mos: str | None = None
    threads: int = Field(default=1, ge=1)
    timing_texts: int = Field(default=8, ge=1)
    timing_runs: int = Field(default=6, ge=1)
    timeout_s: float = Field(default=600.0, gt=0, le=3600 * _HOURS_OF_A_YEAR)
    """Longest time to speak or recognize one text."""

    def options(self, recognizer: str, **more: Any) -> EvaluationOptions:
        """Return them as the evaluation takes them; a unit has one processor."""
        return EvaluationOptions(jobs=1, recognizer=recognizer, **self.model_dump(), **more)


class Plan(ConfigFile):
    """The file."""

    voices: tuple[str, ...] = Field(min_length=1)
    """Model specs; `*` in a path stands for all files that match."""

    schemes: tuple[str, ...] = Field(min_length=1)
    """Names of schemes, and paths of recipes."""

    output: str
    """Folder of all results: a path, or any URL that fsspec knows, such as `s3://bucket/sweep`."""

    @field_validator("output")
    @classmethod
    def _check_output(cls, output: str) -> str:
        if not output or "\0" in output:
            raise ValueError(f"{output!r} is no folder; give a path or a URL")
        return output

    suite: str = "en-quick"
    recognizer: str | None = None
    seeds: tuple[int, ...] | None = None
    calibration: str | None = None
    gates: tuple[str, ...] = ("default",)
    shards: int = Field(default=4, ge=1, le=10_000)
    """Parts of the suite, for each model."""

    unit_hours: float = Field(default=24.0, gt=0, le=_HOURS_OF_A_YEAR)
    """Longest time of a unit."""

    settings: Settings = Settings()
    environments: dict[str, Environment] = Field(default_factory=dict)
    """By family."""


class OpenPlan(Config):
    """A plan with everything that it names found: all that a process needs to do its units."""

    voices: tuple[str, ...]
    schemes: tuple[PlannedScheme, ...]
    output: str
    suite: Suite
    calibration: str | None
    gates: tuple[str, ...]
    shards: int
    unit_hours: float
    settings: Settings
    environments: dict[str, Environment]
    """By voice, for those of families that have one of their own."""

    def environment_of(self, voice: str) -> Environment:
        """Return the environment of a voice."""
        return self.environments.get(voice, Environment())

    def texts_of(self, shard: int) -> range:
        """Return the places of a shard's texts in the suite: every so many, from its number on.

        Suites begin with short texts or end with hard ones; strides give all shards of each.
        """
        return range(shard, len(self.suite.utterances), self.shards)


def read_plan(path: Path) -> OpenPlan:
    """Return the plan in a file. Paths in it start from its folder."""
    plan, folder = read_config(path, Plan), path.absolute().parent
    names = ", ".join(sorted(families()))
    for name in plan.environments:
        if name not in families():
            raise RecipeError(f"'{path}': `environments` names no family {name!r}; known: {names}")
    suite = read_suite(_found(plan.suite, folder))
    suite = suite.with_seeds(plan.seeds).with_recognizer(plan.recognizer)
    gates = tuple(_found(name, folder) for name in plan.gates)
    for name in gates:  # refused before the work
        if read_gates(name).needs_earlier:
            raise RecipeError(f"gates {name!r} compare with an earlier report; a sweep has none")
    _check_distinct("gates", [read_gates(name).name for name in gates])
    schemes = tuple(_scheme(name, folder) for name in plan.schemes)
    _check_distinct("schemes", [scheme.name for scheme in schemes])
    voices = tuple(spec for stated in plan.voices for spec in _expand(stated, folder))
    _check_distinct("voices", list(voices))
    calibration = plan.calibration and _found(plan.calibration, folder)
    if calibration:
        read_calibration_set(calibration)  # refused before the work
    return OpenPlan(
        voices=voices,
        schemes=schemes,
        output=plan.output if "://" in plan.output else str(folder / plan.output),
        suite=suite,
        calibration=calibration,
        gates=gates,
        shards=min(plan.shards, len(suite.utterances)),
        unit_hours=plan.unit_hours,
        settings=plan.settings,
        environments=_by_voice(plan.environments, voices),
    )


def _by_voice(
    environments: Mapping[str, Environment], voices: Sequence[str]
) -> dict[str, Environment]:
    """Return the environments by voice; what is no model has none, and fails when it is opened."""
    stated = (
        (voice, environments.get(family_of(voice) or ""))
        for voice in (voices if environments else ())
    )
    return {voice: environment for voice, environment in stated if environment is not None}


def _check_distinct(kind: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(f"`{kind}` has {', '.join(map(repr, twice))} twice; give each once")


def _found(name: str, folder: Path) -> str:
    """Return a path from the plan's folder on where there is such a file, else the name."""
    beside = folder / name
    return str(beside) if beside.exists() else name


def _expand(spec: str, folder: Path) -> list[str]:
    if not _MAGIC & {*spec}:
        return [_found(spec, folder)]
    # `Path.glob` takes no absolute pattern.
    start = Path(spec).anchor
    paths = sorted((Path(start) if start else folder).glob(spec.removeprefix(start)))
    if not paths:
        raise RecipeError(f"`voices`: no file matches {spec!r} in '{start or folder}'")
    return [str(path) for path in paths]


def _scheme(stated: str, folder: Path) -> PlannedScheme:
    if not stated.endswith(".toml"):
        name = find_scheme(stated).name
        return PlannedScheme(name=name, scheme=name)
    path = data_file("calib/recipes", _found(stated, folder))
    if scheme_of(path) is None:
        raise RecipeError(
            f"`schemes`: '{path}' states no `scheme`; give a recipe of one scheme in each file"
        )
    recipe = read_config(path, Recipe)
    return PlannedScheme(name=path.stem, scheme=recipe.scheme, recipe=str(path))


class Opened(Config):
    """A voice as a machine with its environment opened it."""

    spec: str
    name: str
    """Name in paths and on the page, which no other voice has."""

    family: str
    fingerprint: str
    """Hash of everything that decides how it speaks."""


class Identity(Config):
    """An environment, as far as it decides results."""

    code: str
    """Hash of this package's code below the reports."""

    packages: dict[str, str]
    """Versions."""

    recognizer: str
    """Its own description."""

    measures: dict[str, str]
    """Descriptions of the measures that are done, by name."""

    runtime_env: str = ""


class Unit(Config):
    """One unit of work."""

    kind: Kind
    voice: Opened
    scheme: PlannedScheme | None = None
    """None for the reference's speech."""

    shard: int | None = None
    """None for what is not divided."""

    key: str
    needs: tuple[str, ...] = ()
    """Keys of the units whose results it takes."""

    identity: Identity
    """The environment that it is to be done in."""

    @property
    def chain(self) -> tuple[str, str]:
        """Voice and scheme: units that keep the same model loaded."""
        return self.voice.name, self.scheme.name if self.scheme else ""

    @property
    def title(self) -> str:
        """Its name for people."""
        scheme = () if self.scheme is None else (self.scheme.name,)
        shard = () if self.shard is None else (f"shard {self.shard}",)
        return ", ".join((f"{self.kind} {self.voice.name}", *scheme, *shard))


class Failure(Config):
    """Work that cannot be done, and why."""

    voice: str
    scheme: str = ""
    """Empty where it concerns every scheme."""

    unit: str = ""
    """The unit's title; empty where there is none, because the voice could not be opened."""

    reason: str


def hash_of(content: object) -> str:
    """Return the hash of what can be written as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def units_of(
    plan: OpenPlan, voice: Opened, scheme: PlannedScheme, identity: Identity
) -> list[Unit]:
    """Return the units of a pair, those that others need first; the reference's are among them."""
    recipe = find_recipe(voice.family, scheme.scheme, scheme.recipe)
    texts = None if recipe.calibration is None else plan.calibration or recipe.calibration.set
    calibration = texts and read_calibration_set(texts).model_dump(mode="json")
    tools, ears = identity.model_dump(exclude=_EARS), identity.model_dump(include=_EARS)
    decides = {"format": _FORMAT, "tools": tools, "voice": voice.fingerprint}
    unit = partial(Unit, voice=voice, scheme=scheme, identity=identity)
    form = [recipe.model_dump(mode="json"), calibration, scheme.scheme]
    compress = unit(kind="compress", key=hash_of(["compress", decides, form]))
    shards, heard = range(plan.shards), decides | ears
    references = [_speech(plan, "reference", shard, heard, compress) for shard in shards]
    candidates = [_speech(plan, "candidate", shard, heard, compress) for shard in shards]
    all_texts = [utterance.text for utterance in plan.suite.utterances]
    timing = [plan.settings.threads, plan.settings.timing_texts, plan.settings.timing_runs]
    key = hash_of(["time", decides, compress.key, all_texts, timing, _manner(plan)])
    time = unit(kind="time", key=key, needs=(compress.key,))
    needs = tuple(unit.key for unit in (compress, *references, *candidates, time))
    judged = [plan.suite.sha256, plan.suite.name, plan.settings.model_dump()]
    key = hash_of(["report", decides, needs, judged, voice.spec, voice.name, scheme.name])
    return [compress, *references, *candidates, time, unit(kind="report", key=key, needs=needs)]


def _manner(plan: OpenPlan) -> dict[str, Any]:
    """Return what decides speech beside model, which has the prompt, texts and seeds."""
    return {"language": plan.suite.language, "speaker": plan.settings.speaker}


def _speech(plan: OpenPlan, kind: Kind, shard: int, decides: object, compress: Unit) -> Unit:
    scheme, needs = (compress.scheme, (compress.key,)) if kind == "candidate" else (None, ())
    texts = [(index, plan.suite.utterances[index].text) for index in plan.texts_of(shard)]
    key = hash_of([kind, decides, needs, texts, plan.suite.seeds, _manner(plan)])
    update = {"kind": kind, "scheme": scheme, "shard": shard, "key": key, "needs": needs}
    return compress.model_copy(update=update)


def share_of(units: Sequence[Unit], number: int, count: int) -> list[Unit]:
    """Return one of `count` shares of the units: whole chains, so that no share needs another's.

    A chain is all units that need the same compressed model; each shard of a reference is a chain
    of its own. The longest chains are dealt first, each to the share with the fewest units so far.
    Reports are in none: they need chains of several shares.

    Args:
        units: All units, in the order of the plan.
        number: Number of the share, from 1.
        count: Number of shares.
    """
    chains: dict[tuple[str, str, int | None], list[Unit]] = {}
    for unit in units:
        if unit.kind != "report":
            shard = unit.shard if unit.kind == "reference" else None
            chains.setdefault((*unit.chain, shard), []).append(unit)
    loads = [(0, share) for share in range(1, count + 1)]
    mine: list[Unit] = []
    for chain in sorted(chains.values(), key=len, reverse=True):  # keeps the order of equals
        load, share = loads[0]
        heapreplace(loads, (load + len(chain), share))
        if share == number:
            mine += chain
    return mine

"""Units of work: what each needs, and its key, the hash of everything that decides its result.

compress    (voice, scheme)           the compressed model
reference   (voice, shard)            the FP32 model's speech, recognized; of all schemes
candidate   (voice, scheme, shard)    the compressed model's speech, recognized
time        (voice, scheme)           both models timed, on a machine that does nothing else
report      (voice, scheme)           the evaluation, from all of these
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from heapq import heapreplace
from typing import Any, Literal, TypeAlias

from tts_compress.config import Config
from tts_compress.evaluation.suite import prompt_content
from tts_compress.recipes.family import find_recipe
from tts_compress.recipes.recipe import read_calibration_set
from tts_compress.sweep.plan import OpenPlan, Scheme

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
    scheme: Scheme | None = None
    """None for the reference's speech."""

    shard: int | None = None
    """None for what is not divided."""

    key: str
    needs: tuple[str, ...] = ()
    """Keys of the units whose results it takes."""

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
    scheme: str
    """Empty where it concerns every scheme."""

    unit: str
    """The unit's title; empty where there is none, because the voice could not be opened."""

    reason: str


def hash_of(content: object) -> str:
    """Return the hash of what can be written as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def units_of(plan: OpenPlan, voice: Opened, scheme: Scheme, identity: Identity) -> list[Unit]:
    """Return the units of a pair, those that others need first; the reference's are among them.

    Raises:
        SchemeError: The voice's family does not have the scheme.
        RecipeError: The recipe or calibration set is malformed.
    """
    recipe = find_recipe(voice.family, scheme.scheme, scheme.recipe)
    texts = None if recipe.calibration is None else plan.calibration or recipe.calibration.set
    calibration = texts and read_calibration_set(texts).model_dump(mode="json")
    tools, ears = identity.model_dump(exclude=_EARS), identity.model_dump(include=_EARS)
    decides = {"format": _FORMAT, "tools": tools, "voice": voice.fingerprint}
    unit = partial(Unit, voice=voice, scheme=scheme)
    made = [recipe.model_dump(mode="json"), calibration, scheme.scheme]
    compress = unit(kind="compress", key=hash_of(["compress", decides, made]))
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
    """Return what decides speech beside model, texts and seeds."""
    suite = plan.suite
    return {
        "prompt": None if suite.prompt is None else prompt_content(suite.prompt),
        "language": suite.language,
        "speaker": plan.settings.speaker,
    }


def _speech(plan: OpenPlan, kind: Kind, shard: int, decides: object, compress: Unit) -> Unit:
    scheme, needs = (compress.scheme, (compress.key,)) if kind == "candidate" else (None, ())
    texts = [(index, plan.suite.utterances[index].text) for index in plan.texts_of(shard)]
    key = hash_of([kind, decides, needs, texts, plan.suite.seeds, _manner(plan)])
    return Unit(kind=kind, voice=compress.voice, scheme=scheme, shard=shard, key=key, needs=needs)


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
            own = unit.shard if unit.kind == "reference" else None
            chains.setdefault((*unit.chain, own), []).append(unit)
    loads = [(0, share) for share in range(1, count + 1)]
    mine: list[Unit] = []
    for chain in sorted(chains.values(), key=len, reverse=True):  # keeps the order of equals
        load, share = loads[0]
        heapreplace(loads, (load + len(chain), share))
        if share == number:
            mine += chain
    return mine

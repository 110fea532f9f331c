"""Cases of the promises: the tiny model of a system in torch, and what is particular to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemePromise:
    """Bounds that the compressed tiny model keeps; a figure that is None is not promised."""

    snr_db: float | None = None
    """Least ratio of the sound to its difference from the original's, of the same noise, dB."""

    kl_nats: float | None = None
    """Most mean divergence of a language model's scores."""

    agreement: float | None = None
    """Least share of tokens that stay the most probable ones."""

    share: float = 0.7
    """Most bytes of the file, of the original's weights."""

    counts: Mapping[str, int] | None = None
    """Numbers of layers in a saved model, by operator and format; those kept in floats aside. None
    where they are only compared with those of the model in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """How near a deployed component is to its student before training."""

    objectives: tuple[str, ...]
    """Components that learn by the scheme."""

    snr_db: float
    """Least ratio of its output to that output's difference from the student's, dB."""

    layers_db: float = 0.0
    """The same of the farthest of its layers, each with the student's input."""

    loss: float = 1.0
    """Most difference of its loss from the student's, of the student's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Promises of a training of the model in four bits."""

    texts: tuple[str, ...]
    objectives: tuple[str, ...]
    learned: Mapping[str, float]
    """Most of each loss that is left, of what it was before."""

    stops: tuple[tuple[str, int], ...]
    """Stages and updates at which a training is stopped, to go on with the same bytes."""

    deployed: Mapping[str, Deployed]
    """By scheme."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    """Options other than the usual few updates."""

    unheard: tuple[str, ...] = ()
    """Messages of a training about components that calibration does not reach."""

    model: str | None = None
    """Fixture of the model, where it is another one."""

    slow: bool = False
    """True if going on is a slow test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded:
    """A model as the commands are given it, and what a report of it states."""

    spec: Callable[[pytest.FixtureRequest], str]
    """Returns the spec that users type."""

    options: Callable[[pytest.FixtureRequest], list[str]] = lambda _: []
    """Returns further options of the commands."""

    texts: tuple[str, str] | None = ("Hello there.", "Shut the gate.")
    """Texts of a suite; None for a family with evaluations of its own."""

    prompt: str = ""
    """The suite's section `[prompt]`, with `voice.wav` as a recording."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings that the report states of both sides."""

    memory: float = 0.5
    """Most of the peak that is the model's own."""

    language: str | None = None
    timed: tuple[str, ...] = ()
    """Components with a share of the time that `inspect` shows; empty where another model of the
    family has them."""


def _unchanged(model: Any) -> Any:
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCase:
    """A system's tiny model, and what is particular to it."""

    family: str
    model: str
    """Fixture of the loaded model; it is never modified."""

    schemes: Mapping[str, SchemePromise]
    text: str = "please call again at ten"
    texts: tuple[str, ...] = ("please call again at ten", "the door was open")
    """Texts by which language models are compared."""

    seeds: tuple[int | None, ...] = (0,)
    slow: bool = False
    """True if schemes other than one in integers and one in floats are slow tests."""

    configured: Callable[[Any], Any] = _unchanged
    """Returns the model with options that are compared by, which an artifact need not keep."""

    noisy: bool = True
    """True if a seed changes what is spoken."""

    untried: frozenset[str] = frozenset()
    """Schemes of the family that have nothing to do with this model."""

    check: Callable[[pytest.FixtureRequest, Any, Any, str], None] = lambda *_: None
    """Checks what else is promised of the original, the saved model and the scheme."""

    saved: tuple[str, ...] = ()
    """Files of a saved original; empty where it is written in upstream's own format."""

    saved_again: bool = True
    """True if an artifact that is opened and saved again has the same bytes."""

    computed: Callable[[str], bool] = lambda _: False
    """Tells by a buffer's name whether it is computed where an artifact is opened."""

    learning: Learning | None = None
    """None for a family with trainings of its own."""

    commanded: Commanded

"""All that decides results beside the inputs of a unit: code, versions, recognizer, measures."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tts_compress.config import data_file, data_names
from tts_compress.environment import code_hash, describe_environment
from tts_compress.errors import TTSCompressError, reason
from tts_compress.evaluation.analysis import Analyzer, find_analyzers, find_recognizer
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.run import check_language
from tts_compress.evaluation.subject import Subject, give_speakers, open_subject
from tts_compress.sweep.plan import OpenPlan
from tts_compress.sweep.units import Identity, hash_of

_WORK = "sweep.work"
"""The module that does units; a result depends on what it imports."""

_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def recognizer_of(plan: OpenPlan, options: EvaluationOptions) -> Analyzer:
    """Start the plan's recognizer once, and return it with its description."""
    return find_recognizer(plan.suite.recognizer, plan.suite.language, options)


def identify(
    plan: OpenPlan, spec: str, recognizer: Analyzer, options: EvaluationOptions
) -> Identity:
    """Return this process's environment.

    Args:
        plan: The plan.
        spec: A voice of the environment.
        recognizer: The plan's, opened here.
        options: As its units have them.
    """
    environment = plan.environment_of(spec).runtime_env
    return Identity(
        code=_code(),
        packages=describe_environment()["packages"],
        recognizer=recognizer.description,
        measures={m.name: analyzer.description for m, analyzer in find_analyzers(options).items()},
        runtime_env=hash_of(environment) if environment else "",
    )


def open_voice(plan: OpenPlan, spec: str) -> Subject:
    """Return a voice as the reference of its evaluations.

    Raises:
        ModelError: It cannot be found or read.
        EvaluationError: It does not speak the suite's language, or has no such speaker.
    """
    found = open_subject(spec, None, plan.suite.prompt, plan.suite.language)
    if not plan.settings.any_language:
        check_language(found.model, plan.suite)
    return give_speakers((found, found), plan.settings.speaker)[0]


def describe_voices(plan: OpenPlan, specs: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the family and fingerprint of each voice, or the reason why there is none."""
    for spec in specs:
        try:
            found = open_voice(plan, spec)
            yield {"family": found.model.family, "fingerprint": found.fingerprint}
        except TTSCompressError as error:
            yield {"reason": reason(error)}


def name_voices(specs: tuple[str, ...]) -> dict[str, str]:
    """Return a short name for each spec: its last part, with a number where several have it."""
    names: dict[str, str] = {}
    for spec in specs:
        short = _PLAIN.sub("-", Path(spec).stem).strip("-.") or "voice"
        name, number = short, 1
        while name in names.values():
            number += 1
            name = f"{short}-{number}"
        names[spec] = name
    return names


@cache
def _code() -> str:
    """Return the hash of the code and data that decide results."""
    digest = hashlib.sha256(code_hash(_WORK).encode())
    for kind in ("calib/sets", "calib/contracts"):
        for name in data_names(kind):
            digest.update(data_file(kind, name).read_bytes())
    return digest.hexdigest()[:16]

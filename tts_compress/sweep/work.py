"""The program that does units of a sweep, in a process of its own.

It is thin above the evaluation's stages, which a unit runs in a store of its own. Models and
recognizers stay loaded from one unit to the next; the results of units that others need are fetched
once.

It is started as `python -m tts_compress.sweep.work sweep PLAN.json`, speaks like the evaluation's
workers, keeps what it needs beside the plan, and ends with the process that started it: whoever
does a unit again must not do it beside this one.
"""

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any

from tts_compress.compression import compress, compress_trained
from tts_compress.config import data_file, data_names
from tts_compress.environment import code_hash, describe_environment, describe_processor
from tts_compress.errors import EvaluationError, TTSCompressError, reason
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import Side, fill_store
from tts_compress.evaluation.process import KeptWorkers
from tts_compress.evaluation.run import check_language, evaluate
from tts_compress.evaluation.stages import time_pair
from tts_compress.evaluation.store import (
    Analyzer,
    Store,
    cache_folder,
    find_analyzers,
    find_recognizer,
    short_hash,
)
from tts_compress.evaluation.subject import Subject, give_speakers, open_subject
from tts_compress.folders import temporary_folder
from tts_compress.processes import Answer, serve
from tts_compress.qat.options import TrainingRun
from tts_compress.reading import read_text
from tts_compress.recipes.formats import find_scheme
from tts_compress.sweep.plan import Identity, OpenPlan, Unit, hash_of
from tts_compress.sweep.results import open_results

_MODELS = 2
"""Compressed models that are kept unpacked."""

_WORK = "sweep.work"
"""This module; a result depends on what it imports."""


class UnitRunner:
    """Does units, one after the other, and responds to the requests of a `UnitProcess`."""

    def __init__(self, plan: OpenPlan, scratch: Path) -> None:
        self._plan = plan
        self._scratch = scratch
        self._results = open_results(plan.output)
        self._kept = KeptWorkers()
        self._artifacts: dict[str, Path] = {}

    @cached_property
    def _recognizer(self) -> Analyzer:
        suite = self._plan.suite
        return find_recognizer(suite.recognizer, suite.language, self._options())

    def describe(self, specs: list[str]) -> Answer:
        """Return this environment, and its voices by spec, or why there are none."""
        voices = {spec: self._describe(spec) for spec in specs}
        return {"voices": voices, "identity": self._identify(specs[0]).model_dump()}

    def run(self, unit: dict[str, Any]) -> Answer:
        """Do a unit and keep its result, unless there is one; if it cannot be done, return why."""
        parsed = Unit.model_validate(unit, strict=False)
        try:
            _check(self._identify(parsed.voice.spec), parsed.identity)
            if not self._results.has(parsed.key):
                self._do(parsed)
        except TTSCompressError as error:
            self._note(parsed, failed=reason(error))
            return {"failed": reason(error)}
        return {}

    def _do(self, unit: Unit) -> None:
        start = perf_counter()
        with temporary_folder(self._scratch) as folder:
            self._KINDS[unit.kind](self, unit, folder)
            self._results.put(unit.key, folder)
        shutil.rmtree(self._training(unit), ignore_errors=True)
        self._note(unit, seconds=perf_counter() - start)

    def _describe(self, spec: str) -> dict[str, str]:
        """Return the family and fingerprint of a voice, or the reason why there is none."""
        try:
            voice = self._open(spec)
            return {"family": voice.model.family, "fingerprint": voice.fingerprint}
        except TTSCompressError as error:
            return {"reason": reason(error)}

    def _identify(self, spec: str) -> Identity:
        """Return the environment of this process, as the units of a voice have it."""
        environment = self._plan.environment_of(spec).runtime_env
        measures = find_analyzers(self._options())
        return Identity(
            code=_code(),
            packages=describe_environment()["packages"],
            recognizer=self._recognizer.description,
            measures={m.name: analyzer.description for m, analyzer in measures.items()},
            runtime_env=hash_of(environment) if environment else "",
        )

    def _note(self, unit: Unit, **end: object) -> None:
        """Add an execution to the log."""
        record = {"unit": unit.title, "host": platform.node(), "process": os.getpid()}
        self._results.note(unit.key, record | end)

    def _options(self, **more: object) -> EvaluationOptions:
        return self._plan.settings.options(self._plan.suite.recognizer, **more)

    def _compress(self, unit: Unit, folder: Path) -> None:
        assert unit.scheme is not None, "units that compress have one"
        reference, scheme = self._reference(unit).model, unit.scheme
        compressing: Callable[..., Any] = compress
        if find_scheme(scheme.scheme).trained:
            compressing = partial(compress_trained, run=TrainingRun(folder=self._training(unit)))
        calibration = self._plan.calibration
        model = compressing(reference, scheme.scheme, recipe=scheme.recipe, calibration=calibration)
        model.save(folder / "model")

    def _training(self, unit: Unit) -> Path:
        """Return the folder of a unit's training, with which another process here goes on.

        Processors round differently: one would refuse the checkpoint of another.
        """
        name = short_hash(f"{unit.key}\n{self._plan.output}\n{describe_processor()}")
        return cache_folder() / "trainings" / name

    def _speak(self, unit: Unit, folder: Path) -> None:
        assert unit.shard is not None, "speech is divided"
        is_reference = unit.kind == "reference"
        side = Side(
            role="reference" if is_reference else "candidate",
            model=self._reference(unit) if is_reference else self._pair(unit)[1],
            suite=self._plan.suite,
            texts=self._plan.texts_of(unit.shard),
        )
        options = self._options(kept=self._kept)
        fill_store(side, self._recognizer, find_analyzers(options), Store(folder), options)

    def _time(self, unit: Unit, folder: Path) -> None:
        self._kept.close()  # an idle process would take memory, and caches of the processor
        texts = [utterance.text for utterance in self._plan.suite.utterances]
        time_pair(Store(folder), self._pair(unit), texts, self._options())

    def _report(self, unit: Unit, folder: Path) -> None:
        with temporary_folder(self._scratch) as work:
            for key in unit.needs[1:]:  # the first is the compressed model
                self._results.get(key, work)
            pair = (subject.model for subject in self._pair(unit))
            options = self._options(kept=self._kept, work=work, timed_before=True)
            evaluation = evaluate(*pair, suite=self._plan.suite, options=options)
        # Otherwise the place where this process unpacked it.
        shown = evaluation.candidate.model_copy(update={"spec": "/".join(unit.chain)})
        evaluation.model_copy(update={"candidate": shown}).write(folder)

    def _open(self, spec: str) -> Subject:
        """Return a voice as the reference of its evaluations."""
        suite, settings = self._plan.suite, self._plan.settings
        voice = open_subject(spec, None, suite.prompt, suite.language)
        if not settings.any_language:
            check_language(voice.model, suite)
        return give_speakers((voice, voice), settings.speaker)[0]

    def _reference(self, unit: Unit) -> Subject:
        """Return the voice, which must be here what it was where the units were planned."""
        voice = self._open(unit.voice.spec)
        if voice.fingerprint != unit.voice.fingerprint:
            raise EvaluationError(
                f"'{unit.voice.spec}' is another voice on {platform.node()} than where the sweep "
                "was started; give all machines the same files"
            )
        return voice

    def _pair(self, unit: Unit) -> tuple[Subject, Subject]:
        reference = self._reference(unit)
        location = self._artifact(unit.needs[0])
        suite = self._plan.suite
        candidate = open_subject(str(location), self._scratch, suite.prompt, suite.language)
        return give_speakers((reference, candidate), self._plan.settings.speaker)

    def _artifact(self, key: str) -> Path:
        """Return the folder of a compressed model."""
        if key not in self._artifacts:
            while len(self._artifacts) >= _MODELS:
                shutil.rmtree(self._artifacts.pop(next(iter(self._artifacts))))
            folder = self._scratch / f"model-{key[:16]}"
            self._results.get(key, folder)
            self._artifacts[key] = folder
        return self._artifacts[key] / "model"

    _KINDS: Mapping[str, Callable[["UnitRunner", Unit, Path], None]] = {
        "compress": _compress,
        "reference": _speak,
        "candidate": _speak,
        "time": _time,
        "report": _report,
    }


def _check(mine: Identity, planned: Identity) -> None:
    if mine == planned:
        return
    values = zip(mine.model_dump().items(), planned.model_dump().values(), strict=True)
    differing = "; ".join(
        f"{name} is {here} and not {there}" for (name, here), there in values if here != there
    )
    raise TTSCompressError(
        f"{platform.node()} has another environment than the one that planned: {differing}; "
        "install the same everywhere"
    )


@cache
def _code() -> str:
    """Return the hash of the code and data that decide results."""
    digest = hashlib.sha256(code_hash(_WORK).encode())
    for kind in ("calib/sets", "calib/contracts"):
        for name in data_names(kind):
            digest.update(data_file(kind, name).read_bytes())
    return digest.hexdigest()[:16]


def main(plan: Path) -> None:
    """Serve requests until standard input ends."""
    serve(lambda: UnitRunner(OpenPlan.model_validate_json(read_text(plan)), plan.parent))


if __name__ == "__main__":
    main(Path(sys.argv[-1]))

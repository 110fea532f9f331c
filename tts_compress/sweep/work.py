"""The work of units: thin above the evaluation's stages, which a unit runs in a store of its own.

Models and recognizers stay loaded from one unit to the next; the results of units that others need
are fetched once.
"""

import os
import platform
import shutil
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from time import perf_counter

from tts_compress.compression import compress
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.analysis import Analyzer, find_analyzers
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import Side, fill_store
from tts_compress.evaluation.process import KeptWorkers
from tts_compress.evaluation.run import evaluate
from tts_compress.evaluation.stages import time_pair
from tts_compress.evaluation.store import Store
from tts_compress.evaluation.subject import Subject, give_speakers, open_subject
from tts_compress.folders import temporary_folder
from tts_compress.sweep.identity import identify, open_voice, recognizer_of
from tts_compress.sweep.plan import OpenPlan
from tts_compress.sweep.results import open_results
from tts_compress.sweep.units import Identity, Unit

_MODELS = 2
"""Compressed models that are kept unpacked."""


class Workplace:
    """Does units, one after the other.

    Args:
        plan: The plan.
        scratch: A folder for what is needed meanwhile.
    """

    def __init__(self, plan: OpenPlan, scratch: Path) -> None:
        self._plan = plan
        self._scratch = scratch
        self._results = open_results(plan.output)
        self._kept = KeptWorkers()
        self._artifacts: dict[str, Path] = {}

    @cached_property
    def _recognizer(self) -> Analyzer:
        return recognizer_of(self._plan, self._options())

    def identify(self, spec: str) -> Identity:
        """Return the environment of this process, as the units of a voice have it."""
        return identify(self._plan, spec, self._recognizer, self._options())

    def run(self, unit: Unit) -> float | None:
        """Do a unit and keep its result; return the seconds, or None if it was done before.

        Raises:
            TTSCompressError: It cannot be done.
        """
        if self._results.has(unit.key):
            return None
        start = perf_counter()
        with temporary_folder(self._scratch) as folder:
            self._KINDS[unit.kind](self, unit, folder)
            self._results.put(unit.key, folder)
        seconds = perf_counter() - start
        self._results.note(unit.key, self._record(unit) | {"seconds": seconds})
        return seconds

    def note_failure(self, unit: Unit, why: str) -> None:
        """Add a failure to the log."""
        self._results.note(unit.key, self._record(unit) | {"failed": why})

    def close(self) -> None:
        """End the processes that were kept."""
        self._kept.close()

    def _record(self, unit: Unit) -> dict[str, object]:
        return {"unit": unit.title, "host": platform.node(), "process": os.getpid()}

    def _options(self, **more: object) -> EvaluationOptions:
        return self._plan.settings.options(self._plan.suite.recognizer, **more)

    def _compress(self, unit: Unit, folder: Path) -> None:
        assert unit.scheme is not None, "units that compress have one"
        reference = self._reference(unit)
        scheme, settings = unit.scheme, self._plan
        model = compress(
            reference.model,
            scheme.scheme,
            recipe=scheme.recipe,
            calibration=settings.calibration,
        )
        model.save(folder / "model")

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
            before, after = self._pair(unit)
            found = evaluate(
                before.model,
                after.model,
                suite=self._plan.suite,
                options=self._options(kept=self._kept, work=work, timed_before=True),
            )
        # Otherwise the place where this process unpacked it.
        shown = found.candidate.model_copy(update={"spec": "/".join(unit.chain)})
        found.model_copy(update={"candidate": shown}).write(folder)

    def _reference(self, unit: Unit) -> Subject:
        """Return the voice, which must be here what it was where the units were planned."""
        found = open_voice(self._plan, unit.voice.spec)
        if found.fingerprint != unit.voice.fingerprint:
            raise EvaluationError(
                f"'{unit.voice.spec}' is another voice on {platform.node()} than where the sweep "
                "was started; give all machines the same files"
            )
        return found

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

    _KINDS: Mapping[str, Callable[["Workplace", Unit, Path], None]] = {
        "compress": _compress,
        "reference": _speak,
        "candidate": _speak,
        "time": _time,
        "report": _report,
    }

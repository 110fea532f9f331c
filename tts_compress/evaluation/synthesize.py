"""Stage 1: speak every text with every seed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.store import Spoken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tts_compress.evaluation.options import EvaluationOptions
    from tts_compress.evaluation.prompt import SuitePrompt
    from tts_compress.evaluation.store import Store

__all__ = ["Line", "Speaker", "synthesize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A text to be spoken with a seed."""

    text: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """A model as the stages know it."""

    location: str
    """A model spec a worker can load."""

    shown: str
    """What messages call it."""

    fingerprint: str
    prompt: SuitePrompt | None = None
    """What it speaks by; None leaves it as it is."""

    def start(self, options: EvaluationOptions) -> Worker:
        """Return a worker that has this model, prompted; a context manager.

        Raises:
            EvaluationError: It did not start, or cannot speak by the prompt.
        """
        worker = Worker("model", self.location, options.workers, shown=self.shown)
        if self.prompt is None:
            return worker
        try:
            worker.ask("prompt", **self.prompt.model_dump())
        except BaseException:
            worker.close()
            raise
        return worker


def synthesize(
    store: Store, speaker: Speaker, lines: Sequence[Line], options: EvaluationOptions, *, stage: str
) -> None:
    """Have a model speak the lines that are not in the store yet.

    Args:
        store: Where the audio goes.
        speaker: The model; it is not started if there is nothing to do.
        lines: What to say.
        options: How workers are run.
        stage: What progress calls this.

    Raises:
        TextError: A text cannot be spoken.
        EvaluationError: The model's process failed.
    """
    with ExitStack() as stack:
        worker: Worker | None = None
        for done, line in enumerate(lines):
            options.progress.advance(stage, done, len(lines))
            if store.find_spoken(speaker.fingerprint, line.text, line.seed) is not None:
                continue
            worker = worker or stack.enter_context(speaker.start(options))
            _speak(store, speaker, line, worker)
        options.progress.advance(stage, len(lines), len(lines))


def _speak(store: Store, speaker: Speaker, line: Line, worker: Worker) -> None:
    path = store.wav_path(speaker.fingerprint, line.text, line.seed)
    answer = worker.ask("synthesize", text=line.text, seed=line.seed, path=str(path.absolute()))
    durations = answer["durations"]
    store.put_spoken(
        Spoken(
            model=speaker.fingerprint,
            text=line.text,
            seed=line.seed,
            audio=answer["audio"],
            durations=None if durations is None else tuple(durations),
        )
    )

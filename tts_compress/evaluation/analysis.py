"""The stage that analyses single audios: by a recognizer, or by the measure of a metric."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from tts_compress.evaluation.metric import Measure
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.store import Analysis, Store, read_piece, write_piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyzer:
    """A recognizer or a measure as the stages know it."""

    kind: Literal["recognizer", "measure"]
    given: str
    """A recognizer's `NAME` or `NAME:MODEL`; the name of a measure."""

    setting: str
    """The language that a recognizer transcribes, as the suite names it; the settings of a measure,
    as JSON."""

    description: str
    """Its own description, by which values are kept."""

    device: str = "cpu"
    """`cuda` for one that works on a GPU."""

    @property
    def stage(self) -> str:
        """The name of its stage in the progress."""
        return "recognize" if self.kind == "recognizer" else f"measure {self.given}"

    def start(self, options: EvaluationOptions) -> Worker:
        """Start a process with it.

        Raises:
            EvaluationError: It does not start.
        """
        return Worker(self.kind, self.given, options, setting=self.setting)


def find_recognizer(given: str, language: str, options: EvaluationOptions) -> Analyzer:
    """Start a recognizer once, so that one that cannot work fails before anything is spoken.

    Raises:
        EvaluationError: There is no such recognizer or model, or it does not know the language.
        MissingExtraError: The recognizer is not installed.
    """
    with Worker("recognizer", given, options, setting=language) as worker:
        about = worker.ask("describe")
    return Analyzer(kind="recognizer", given=given, setting=language, **about)


def find_analyzer(measure: Measure, options: EvaluationOptions) -> Analyzer | None:
    """Return a measure with its settings; None where it is not to be done.

    Raises:
        EvaluationError: A setting is wrong.
    """
    settings = measure.settings(options)
    if settings is None:
        return None
    setting = json.dumps(settings, sort_keys=True)
    description = f"{measure.name} {setting}"
    return Analyzer(kind="measure", given=measure.name, setting=setting, description=description)


def analyze(
    store: Store,
    analyzer: Analyzer,
    audios: Mapping[str, Path],
    options: EvaluationOptions,
    *,
    stage: str | None = None,
) -> dict[str, Any]:
    """Have the audio analysed that is not yet.

    Args:
        store: Takes the values.
        analyzer: The recognizer or measure; it is not started if there is nothing to do.
        audios: WAV files by the hash of their samples.
        options: Settings of the worker processes.
        stage: Name of this stage in the progress, in place of the analyzer's.

    Returns:
        The value of each audio by its hash: the hypothesis of a recognizer.

    Raises:
        EvaluationError: A process failed.
    """
    by, stage = analyzer.description, stage or analyzer.stage
    found = {
        key: known.value
        for key in audios
        if (known := read_piece(store.analysis_path(by, key), Analysis, by=by, audio=key))
    }

    def ask(worker: Worker, key: str) -> Analysis:
        value = worker.ask("analyze", path=audios[key].absolute())["value"]
        made = Analysis(by=by, audio=key, value=value)
        write_piece(store.analysis_path(by, key), made)
        return made

    missing = [key for key in audios if key not in found]
    # Processes on a GPU would only take memory from each other.
    jobs = 1 if analyzer.device == "cuda" else options.jobs
    options.progress.advance(stage, len(found), len(audios))
    for made in _ask_each(missing, lambda: analyzer.start(options), ask, jobs):
        found[made.audio] = made.value
        options.progress.advance(stage, len(found), len(audios))
    return found


def _ask_each(
    keys: Sequence[str],
    start: Callable[[], Worker],
    ask: Callable[[Worker, str], Analysis],
    jobs: int,
) -> Iterator[Analysis]:
    """Yield what up to `jobs` workers return for the keys, in the order of being finished."""
    idle: SimpleQueue[Worker] = SimpleQueue()

    def serve(key: str) -> Analysis:
        worker = idle.get()
        try:
            return ask(worker, key)
        finally:
            idle.put(worker)

    with ExitStack() as stack:
        jobs = min(jobs, len(keys))
        for _ in range(jobs):
            idle.put(stack.enter_context(start()))
        pool = stack.enter_context(ThreadPoolExecutor(max(1, jobs)))
        # After the first failure nothing more is begun.
        stack.callback(pool.shutdown, cancel_futures=True)
        for future in as_completed([pool.submit(serve, key) for key in keys]):
            yield future.result()

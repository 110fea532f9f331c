"""The stage that analyses single audios: by a recognizer, or by the measure of a metric."""

import json
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock, local
from typing import Any, Literal

from tts_compress.evaluation.metric import Measure, find_measures
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker, borrow
from tts_compress.evaluation.store import Analysis, Store, read_piece, write_piece

_LONGEST_TRIAL_S = 60.0


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

    def start(self, options: EvaluationOptions) -> AbstractContextManager[Worker]:
        """Give a process with it until the block ends.

        Raises:
            EvaluationError: It does not start.
        """
        key = (self.kind, self.given, self.setting, options.worker)
        start = partial(Worker, self.kind, self.given, options, setting=self.setting)
        return borrow(options.kept, key, start)


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
        EvaluationError: A setting is wrong, or a measure that is tried first cannot be opened.
    """
    settings = measure.settings(options)
    if settings is None:
        return None
    setting = json.dumps(settings, sort_keys=True)
    if measure.is_tried:
        brief = replace(options, timeout_s=min(options.timeout_s, _LONGEST_TRIAL_S))
        Worker("measure", measure.name, brief, setting=setting).close()
    description = f"{measure.name} {setting}"
    return Analyzer(kind="measure", given=measure.name, setting=setting, description=description)


def find_analyzers(options: EvaluationOptions) -> dict[Measure, Analyzer]:
    """Return the measures that are to be done.

    Raises:
        EvaluationError: As of `find_analyzer`.
    """
    pairs = ((measure, find_analyzer(measure, options)) for measure in find_measures().values())
    return {measure: analyzer for measure, analyzer in pairs if analyzer is not None}


def analyze(
    store: Store,
    analyzer: Analyzer,
    audios: Iterable[tuple[str, Path]],
    options: EvaluationOptions,
    *,
    total: int,
    stage: str | None = None,
) -> dict[str, Any]:
    """Have the audio analysed that is not yet, while more of it is still being made.

    Args:
        store: Takes the values.
        analyzer: The recognizer or measure; it is not started if there is nothing to do.
        audios: Hashes of samples, and WAV files; each is analysed as soon as it comes.
        options: Settings of the worker processes.
        total: Number of audios that will come.
        stage: Name of this stage in the progress, in place of the analyzer's.

    Returns:
        The value of each audio by its hash: the hypothesis of a recognizer.

    Raises:
        EvaluationError: A process failed.
    """
    by, stage = analyzer.description, stage or analyzer.stage
    values: dict[str, Any] = {}
    done: list[str] = []
    keys: set[str] = set()
    lock, mine = Lock(), local()

    def ask(key: str, path: Path) -> None:
        """Ask the worker of this thread."""
        if not hasattr(mine, "worker"):
            mine.worker = stack.enter_context(analyzer.start(options))
        value = mine.worker.ask("analyze", path=path.absolute())["value"]
        write_piece(store.analysis_path(by, key), Analysis(by=by, audio=key, value=value))
        with lock:
            values[key] = value
            done.append(key)
            options.progress.advance(stage, len(done), total)

    options.progress.advance(stage, 0, total)
    with ExitStack() as stack:
        on_gpu = analyzer.device == "cuda"
        # Processes on a GPU would only take memory from each other, and from the model.
        pool = stack.enter_context(ThreadPoolExecutor(1 if on_gpu else options.jobs))
        # After the first failure nothing more is begun.
        stack.callback(pool.shutdown, cancel_futures=True)
        futures: deque[Future[None]] = deque()
        for key, path in list(audios) if on_gpu else audios:
            known = read_piece(store.analysis_path(by, key), Analysis, by=by, audio=key)
            if known is None and key not in keys:
                futures.append(pool.submit(ask, key, path))
            else:
                with lock:
                    total -= 1
                    options.progress.advance(stage, len(done), total)
            if known is not None:
                values[key] = known.value
            keys.add(key)
            while futures and futures[0].done():
                futures.popleft().result()
        for future in futures:
            future.result()
    return values

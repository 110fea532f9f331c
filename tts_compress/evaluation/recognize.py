"""Stage 2: listen to every distinct audio once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.store import Heard

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tts_compress.evaluation.options import EvaluationOptions
    from tts_compress.evaluation.store import Store

__all__ = ["recognize"]


def recognize(
    store: Store,
    recognizer: str,
    audios: Mapping[str, Path],
    options: EvaluationOptions,
    *,
    stage: str = "recognize",
) -> str:
    """Have a recognizer listen to the audio it has not heard yet; return its description.

    Args:
        store: Where hypotheses go.
        recognizer: Its name in `RECOGNIZERS`.
        audios: WAV files by the hash of their samples.
        options: How workers are run.
        stage: What progress calls this.

    Raises:
        EvaluationError: A recognizer's process failed.
        MissingExtraError: The recognizer is not installed.
    """
    with ExitStack() as stack:
        first = stack.enter_context(Worker("recognizer", recognizer, options.workers))
        description = str(first.ask("describe")["description"])
        missing = [key for key in audios if store.find_heard(description, key) is None]
        idle: SimpleQueue[Worker] = SimpleQueue()
        idle.put(first)
        jobs = max(1, min(options.jobs, len(missing)))
        for _ in range(jobs - 1):
            idle.put(stack.enter_context(Worker("recognizer", recognizer, options.workers)))

        def listen(key: str) -> None:
            worker = idle.get()
            try:
                answer = worker.ask("transcribe", path=str(audios[key].absolute()))
            finally:
                idle.put(worker)
            store.put_heard(
                Heard(recognizer=description, audio=key, hypothesis=answer["hypothesis"])
            )

        known = len(audios) - len(missing)
        options.progress.advance(stage, known, len(audios))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        # After the first failure nothing more is begun.
        stack.callback(pool.shutdown, cancel_futures=True)
        for done, finished in enumerate(as_completed(pool.submit(listen, k) for k in missing), 1):
            finished.result()
            options.progress.advance(stage, known + done, len(audios))
    return description

"""Time both models in other ways than by default, in turns with the default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.errors import EvaluationError, TTSCompressError
from tts_compress.evaluation.cost import as_timings, choose_texts, compare_timings, speed_ratio
from tts_compress.families import torch_families
from tts_compress.models.base import TorchModel
from tts_compress.report.evaluation import Pair, RuntimeVariant

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from tts_compress.evaluation.options import EvaluationOptions
    from tts_compress.evaluation.process import Worker
    from tts_compress.evaluation.synthesize import Speaker
    from tts_compress.models.base import TTSModel

__all__ = ["check_runtimes", "measure_runtimes"]


def check_runtimes(models: Sequence[TTSModel], runtimes: Sequence[str]) -> None:
    """Refuse other runtimes for a model that has only one.

    Raises:
        EvaluationError: A model is not run by torch.
    """
    for model in models if runtimes else ():
        known = torch_families()
        if model.family not in known or not isinstance(model, TorchModel):
            raise EvaluationError(
                f"'{model.spec}' is of family {model.family!r} and has no runtime "
                f"{' or '.join(runtimes)}; only models of {', '.join(known)} run in torch"
            )


def measure_runtimes(
    speakers: tuple[Speaker, Speaker], texts: Sequence[str], options: EvaluationOptions
) -> tuple[RuntimeVariant, ...]:
    """Return how fast both models are in each of `options.runtimes`.

    Each gets processes of its own, so that what a compiler does to them disturbs nothing else. One
    that does not work is said to have failed, with the reason.
    """
    chosen = choose_texts(texts, options.timing_texts)
    found = []
    for name in options.runtimes:
        try:
            found.append(_measure(name, speakers, chosen, options))
        except TTSCompressError as error:
            reason = " ".join(str(error).split())[:300]
            found.append(RuntimeVariant(name=name, latency=None, speed=None, failure=reason))
    return tuple(found)


def _measure(
    name: str, speakers: tuple[Speaker, Speaker], texts: Sequence[str], options: EvaluationOptions
) -> RuntimeVariant:
    stage, total = f"time {name}", 2 * len(texts)
    with speakers[0].start(options) as first, speakers[1].start(options) as second:
        workers = (first, second)
        for worker in workers:
            worker.ask("open_runtime", threads=options.threads, modules=[])
        # Every text once: compilers make other code for other lengths.
        for done, text in enumerate(texts):
            options.progress.advance(stage, done, total)
            for worker in workers:
                _speak(worker, text, None)
                _speak(worker, text, name)
        runs: list[list[list[dict[str, Any]]]] = [[], [], [], []]
        for done, text in enumerate(texts, len(texts)):
            options.progress.advance(stage, done, total)
            turns = [
                [_speak(worker, text, way) for way in (None, name) for worker in workers]
                for _ in range(options.timing_runs)
            ]
            for own, spoken in zip(runs, zip(*turns, strict=True), strict=True):
                own.append(list(spoken))
        graphs = [worker.ask("compiled_graphs")["graphs"] for worker in workers]
        options.progress.advance(stage, total, total)
    timings = [as_timings(own) for own in runs]
    defaults, others = timings[:2], timings[2:]
    speeds = [speed_ratio(*pair) for pair in zip(defaults, others, strict=True)]
    return RuntimeVariant(
        name=name,
        latency=compare_timings(others, options),
        speed=Pair(reference=speeds[0], candidate=speeds[1]),
        graphs=Pair(reference=graphs[0], candidate=graphs[1]) if any(graphs) else None,
    )


def _speak(worker: Worker, text: str, runtime: str | None) -> dict[str, Any]:
    worker.ask("choose_runtime", name=runtime)
    return worker.ask("speak", text=text)

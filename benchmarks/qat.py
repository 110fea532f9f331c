"""`python -m benchmarks.qat`: a vocoder in fewer bits, without training and trained."""

import argparse
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.clips import ASSETS, Clip, read_clips, write_feeds
from benchmarks.command import Add, command
from benchmarks.hifigan import (
    Published,
    Vocoder,
    calls,
    find_published,
    least_times,
    load_generator,
    open_graph,
    runs,
    sound,
)
from benchmarks.report import print_report, render
from tts_compress.compression import compress, compress_trained
from tts_compress.environment import describe_environment
from tts_compress.folders import make_directory
from tts_compress.numerics.spectra import log_mel_distance
from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.qat.trainer import read_log
from tts_compress.qat.training import train_module
from tts_compress.recipes.recipe import Recipe, find_recipe
from tts_compress.terminal import progress_bars, show

_FRAMES = 32
"""Frames of the chunks that the torch module is trained on."""


CONTESTANTS = tuple(
    name + end for name in ("min-max", "int8", "int4-weight-only") for end in ("", "-qat")
)


def _make(
    name: str, published: Published, clips: Sequence[Clip], feeds: Path, run: TrainingRun
) -> Vocoder:
    """Return a contestant, calibrated and trained on clips."""
    trained = name.endswith("-qat")
    if name.startswith("int4"):
        original = load_generator(published.checkpoint)
        if not trained:
            return calls(compress(original, "int4-weight-only"))
        recipe = find_recipe("module", "int4-weight-only")
        run = replace(run, options=replace(run.options, loss="waveform"))
        return calls(train_module(original, recipe, _chunks(clips), run=run))
    model = open_graph(published.graph)
    scheme = "int8-qat" if trained else "int8"
    recipe = _plain(scheme) if name.startswith("min-max") else find_recipe("onnx", scheme)
    if trained:
        return runs(compress_trained(model, recipe=recipe, calibration=feeds, run=run))
    return runs(compress(model, "int8", recipe=recipe, calibration=feeds, quality="fast"))


def _plain(scheme: str) -> Recipe:
    """Return a recipe that puts every convolution into integers, between observed extremes.

    That is `quantize_static` of onnxruntime with its defaults, but per channel.
    """
    recipe = find_recipe("onnx", scheme)
    assert recipe.calibration is not None
    first = next(rule for rule in recipe.component if not rule.durations)
    rule = first.model_copy(update={"skip_graph_inputs": False, "min_channels": 1, "min_kernel": 1})
    observed = recipe.calibration.model_copy(update={"observer": "minmax", "equalize": False})
    changes = {"component": (rule,), "calibration": observed}
    return recipe.model_copy(update=changes | {"float_residuals": False, "format": "qdq"})


def _chunks(clips: Sequence[Clip]) -> list[torch.Tensor]:
    return [
        torch.from_numpy(clip.mel[..., start : start + _FRAMES])
        for clip in clips
        for start in range(0, clip.mel.shape[-1] - _FRAMES, _FRAMES)
    ]


_RATES = {8: 1e-5, 4: 5e-5}
"""Learning rates by the bits of weights: rounding to eight bits leaves errors so small that larger
steps make them worse."""

_ROUNDS = 20


def _bits(name: str) -> int:
    return 4 if name.startswith("int4") else 8


def _measure(options: Namespace, published: Published) -> list[dict[str, Any]]:
    torch.set_num_threads(options.threads)  # of teachers, too
    clips = read_clips(options.assets, 2 * options.clips)
    train, held_out = clips[::2], clips[1::2]
    make_directory(options.output)
    feeds = write_feeds(options.output / "feeds.npz", train)
    fp32 = runs(open_graph(published.graph))
    results = []
    vocoders: dict[str, Vocoder] = {}
    for name in options.contestants:
        folder = options.output / name
        training = _training(options, _RATES[_bits(name)])
        with progress_bars() as progress:
            run = TrainingRun(folder=folder, progress=progress, options=training)
            vocoder = vocoders[name] = _make(name, published, train, feeds, run)
        pairs = [(sound(fp32, clip), sound(vocoder, clip)) for clip in held_out]
        curve = [event for event in read_log(folder) if event["event"] == "held-out"]
        result = {
            "name": name,
            "bits": _bits(name),
            "distance_db": float(np.mean([log_mel_distance(*pair) for pair in pairs])),
            "options": training.identity() if name.endswith("-qat") else None,
            "curve": [(event["step"], event["loss"]) for event in curve],
            "time_ratio": _time_ratio(vocoders, name, held_out[0]),
        }
        show(f"{name}: {result['distance_db']:.3f} dB")
        results.append(result)
    return results


def _time_ratio(vocoders: dict[str, Vocoder], name: str, clip: Clip) -> float | None:
    """Return the time of a trained vocoder over that of the same one without training."""
    untrained = name.removesuffix("-qat")
    if name == untrained or untrained not in vocoders:
        return None
    torch.set_num_threads(1)
    pair = {name: vocoders[name] for name in (untrained, name)}
    before, after = least_times(pair, clip, _ROUNDS).values()
    return after / before


def _training(options: Namespace, rate: float) -> TrainingOptions:
    return TrainingOptions(
        steps=options.steps,
        batch_size=options.batch_size,
        learning_rate=rate,
        held_out=16,
        held_out_every=max(options.steps // 8, 1),
        threads=options.threads,
        learned_ranges=options.learned_ranges,
    )


def _draw(results: Sequence[dict[str, Any]], pyplot: Any) -> Any:
    figure, panel = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for row in results:
        steps, losses = zip(*row["curve"], strict=True)
        panel.plot(steps, [loss / losses[0] for loss in losses], marker="o", label=row["name"])
    label = "held-out loss over that without training"
    panel.set(xlabel="updates", ylabel=label, ylim=(0, None))
    panel.legend()
    return figure


def _options(add: Add) -> None:
    add("--assets", type=Path, default=ASSETS, metavar="DIR")
    add("--contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS)
    add("--clips", type=int, default=16, help="of each kind (%(default)s)")
    add("--steps", type=int, default=400, help="(%(default)s)")
    add("--batch-size", type=int, default=4, help="(%(default)s)")
    add("--threads", type=int, default=2, help="(%(default)s)")
    ranges = "train the ranges of activations, too (%(default)s)"
    add("--learned-ranges", action=argparse.BooleanOptionalAction, default=True, help=ranges)
    add("--output", type=Path, default=Path("out/bench-qat"), metavar="DIR")
    stem = Path("eval/reports/qat")
    add("--report", type=Path, default=stem, metavar="STEM", help="of .json, .md and .svg")


@command("benchmarks.qat", _options)
def main(options: Namespace) -> None:
    """Train a vocoder in eight and in four bits, and compare it with FP32."""
    published = find_published(options.assets)
    if published is None:
        return
    results = _measure(options, published)
    document = {
        "environment": describe_environment(),
        "held_out_clips": options.clips,
        "contestants": results,
    }
    trained = [row for row in results if row["curve"]]
    distances = {row["name"]: row["distance_db"] for row in results}
    values = {"options": options, "results": results, "distances": distances}
    lines = render(Path(__file__).with_suffix(".md"), values, {})
    print_report(options.report, document, lines, lambda pyplot: _draw(trained, pyplot))


if __name__ == "__main__":
    sys.exit(main())

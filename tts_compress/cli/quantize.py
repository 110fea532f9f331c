"""Compress a model and save the artifact.

Examples:
    quantize demo --output out/demo-int8
    quantize voice.onnx --scheme int4-int8 --output out/voice-int4
    quantize voice.onnx --quality fast --output out/voice-fast
    quantize voice.onnx --format qdq --output out/portable
    quantize kokoro.onnx --output out/kokoro-int8
    quantize onnx:vocoder.onnx --calibration feeds.npz --output out/vocoder-int8
"""

import shlex
from argparse import BooleanOptionalAction, Namespace
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from tts_compress.artifact import MANIFEST_NAME, Manifest, check_replaceable
from tts_compress.cli.command import (
    EXECUTION,
    MODEL,
    NEW_ARTIFACT,
    PROMPT,
    Command,
    Option,
    Output,
    damage_heard,
    options_from,
    prompted,
    seed,
)
from tts_compress.errors import TTSCompressError
from tts_compress.models.base import Model, OnnxGraph, TTSModel
from tts_compress.models.execution import Execution
from tts_compress.terminal import human_bytes, progress_bars, tell

if TYPE_CHECKING:
    from tts_compress.recipes.recipe import Recipe

_SLOWER = 0.95
"""Below this share of the original's speed a model is slower, and not only noisily measured."""

_WORTHWHILE = 1.3
"""Speed over the original's below which a bound on quality costs most of what integers give."""

_ARITHMETIC = {"none": "FP32"} | dict.fromkeys(
    ("static", "dynamic", "channels", "inputs"), "integers"
)
"""Words for the arithmetic of a layer's activations, where the format's own name is none."""


COMMAND = Command(
    __doc__,
    Option("model", MODEL),
    Option(
        "--scheme SCHEME",
        "see `tts-compress schemes` (that of the recipe, if it has one, else int8)",
    ),
    *NEW_ARTIFACT,
    Option(
        "--quality",
        "with scheme int8 of an ONNX graph: keep distortion below 0.5 (good) or 0.25 (high), the "
        "floor of pauses within 3 dB and durations, by the fastest formats that do; fast is the "
        "recipe as it is (the recipe's; of the shipped ones good)",
        choices=("good", "high", "fast"),
    ),
    Option(
        "--format",
        "of calibrated integers: standard operators, which other runtimes load (qdq), the same "
        "with activations in 16 bits, for NPUs (qdq16), or onnxruntime's own, which are faster "
        "there (the recipe's)",
        choices=("qdq", "qdq16", "qoperator"),
    ),
    Option(
        "--calibration SET",
        "a calibration set's name or TOML; for a bare graph an .npz of its inputs (the recipe's)",
    ),
    Option("--seed SEED", "of the calibration noise", type=seed, default=0),
    Option(
        "--time",
        "compare sound and speed with the original's, for ONNX models (only one of at most 100 "
        "million weights)",
        action=BooleanOptionalAction,
    ),
    *EXECUTION,
    *PROMPT,
    Option("--force", "replace an existing artifact"),
)


def run(options: Namespace) -> Output:
    """Compress the model, save it, and compare sizes and speeds."""
    from tts_compress.compression import compress, is_feeds
    from tts_compress.models import open_model
    from tts_compress.recipes.formats import find_scheme
    from tts_compress.recipes.recipe import find_recipe

    begun = monotonic()
    # Before minutes of work, not after them.
    check_replaceable(options.output, MANIFEST_NAME, force=options.force)
    execution = options_from(options, Execution)
    opened = open_model(options.model, bare=is_feeds(options.calibration), execution=execution)
    model = prompted(opened, options)
    scheme, recipe = _recipe(model, options)
    if find_scheme(find_recipe(model.family, scheme, recipe).scheme).trained:
        tell(
            f"scheme {scheme!r} trains, and an interruption loses that here; `tts-compress qat` "
            "goes on where it ended, and has the options of the training"
        )
    with progress_bars() as progress:
        small = compress(
            model,
            scheme,
            recipe=recipe,
            calibration=options.calibration,
            quality=options.quality,
            seed=options.seed,
            progress=progress,
        )
    directory = small.save(options.output, force=options.force)
    saved = open_model(str(directory))  # as who uses it will
    manifest = saved.manifest
    assert manifest is not None
    before, after = manifest.source.size_bytes, manifest.size_bytes
    seconds = monotonic() - begun
    if options.quality is not None and options.quality != _quality(manifest):
        tell(
            f"quality {options.quality!r} is not kept: the graph returns no single channel of "
            "samples that could be listened to; this is the recipe as it is"
        )
    heard = _quality(manifest) == "fast" and _is_asked(model, options)
    sound = damage_heard(model, saved, options.seed) if heard else None
    speed = _speed(model, saved, _quality(manifest), options)
    shown = [] if sound is None else [sound.describe()]
    shown += [] if speed is None else [f"{speed:.2f} times as fast, on one thread of this machine"]
    return Output(
        {
            "artifact": str(directory),
            "scheme": manifest.scheme,
            "reference_bytes": before,
            "candidate_bytes": after,
            "speed_ratio": speed,
            "sound": asdict(sound) if sound else None,
            "run": asdict(manifest.run) if manifest.run else None,
        },
        [
            f"{human_bytes(before)} → {human_bytes(after)}, {before / after:.2f} times smaller",
            *(f"  {count:4d} × {label}" for label, count in manifest.counts.items()),
            *(_arithmetic(manifest) if manifest.run is None else _observed(manifest)),
            *shown,
            *([] if _quality(manifest) == "fast" else [manifest.recipe["summary"]]),
            f"artifact, made in {seconds:.0f} s: {directory}",
            f"next: {_next_command(model, directory, options)}",
        ],
    )


def _recipe(model: Model, options: Namespace) -> tuple[str, "Recipe | str | None"]:
    """Return the scheme, and the recipe that takes the shipped one's place, if one does."""
    from tts_compress.recipes.recipe import find_recipe, scheme_of

    recipe = options.recipe
    scheme = options.scheme or (scheme_of(recipe) if recipe else None) or "int8"
    if options.format is None:
        return scheme, recipe
    resolved = find_recipe(model.family, scheme, recipe)
    return scheme, resolved.model_copy(update={"format": options.format})


def _quality(manifest: Manifest) -> str:
    """Return the bound on the sound that was kept, or `fast`."""
    return str(manifest.recipe.get("quality", "fast"))


def _arithmetic(manifest: Manifest) -> list[str]:
    """Return the share of the weights that each arithmetic multiplies, as a sentence each."""
    weights, layers = Counter[str](), Counter[str]()
    for layer in manifest.layers:
        kind = _ARITHMETIC.get(layer.activations, layer.activations)
        weights[kind] += layer.parameters
        layers[kind] += 1
    whole = weights.total() or 1
    return [
        f"{weights[kind] / whole:.0%} of the weights are multiplied in {kind} ({count} layers)"
        for kind, count in layers.most_common()
    ]


def _observed(manifest: Manifest) -> list[str]:
    """Return what one run of the artifact beside its original showed, as a sentence each."""
    assert manifest.run is not None
    counts = dict(manifest.run.arithmetic)
    total, real = sum(counts.values()), counts.pop("FP32", 0)
    for layer in manifest.layers:
        counts.setdefault(_ARITHMETIC.get(layer.activations, layer.activations), 0)
    counts.pop("FP32", None)
    lines = [
        f"{count} of {total} layers are multiplied in {kind} here"
        + ("" if count else ": onnxruntime computes them in FP32")
        for kind, count in counts.items()
    ]
    if any(counts.values()) or not counts:
        lines.append(f"{real} of {total} layers are multiplied in FP32 here")
    if manifest.run.snr_db is None:
        return [*lines, f"opened here, but not compared with the original: {manifest.run.reason}"]
    snr = f"{manifest.run.snr_db:.1f} dB signal-to-noise against the original"
    return [*lines, f"run here on one input: {snr}"]


def _next_command(model: Model, directory: Path, options: Namespace) -> str:
    """Return the command line that shows what the compression cost."""
    if not isinstance(model, TTSModel):
        return shlex.join(["tts-compress", "inspect", str(directory)])
    words = ["tts-compress", "evaluate", options.model, str(directory)]
    if options.checkout:
        words += ["--checkout", str(options.checkout)]
    for name, value in options_from(options, Execution).stated().items():
        words += [f"--{name.replace('_', '-')}", value]
    return shlex.join([*words, "--output", f"{directory}-report"])


def _is_asked(model: Model, options: Namespace) -> bool:
    """Return True if the artifact is to be run: by default where that is quick."""
    from tts_compress.inspection.components import is_quick

    return is_quick(model) if options.time is None else bool(options.time)


def _speed(model: Model, small: Model, quality: str, options: Namespace) -> float | None:
    """Return the artifact's speed over the original's, and warn where it is slower."""
    from tts_compress.compression import is_feeds
    from tts_compress.inspection.components import speed_ratio
    from tts_compress.models.feeds import graph_inputs, open_feeds

    if not isinstance(model, OnnxGraph) or not _is_asked(model, options):
        return None
    feeds = None
    try:
        if is_feeds(options.calibration):
            file = open_feeds(Path(options.calibration), graph_inputs(model.graph()))
            feeds = next(file.read(1))
        with progress_bars() as progress:
            progress.advance("time", 0, 1)
            ratio = speed_ratio(model, small, feeds)
            progress.advance("time", 1, 1)
    except TTSCompressError as error:
        tell(f"the speed is not compared: {error}")
        return None
    if ratio is not None and round(ratio, 2) < _WORTHWHILE and quality != "fast":
        tell(
            f"within quality {quality!r} no choice of formats is {_WORTHWHILE} times as fast as "
            f"the original; the best is {ratio:.2f} times: `--quality fast` is the recipe without "
            "that bound, and `tts-compress qat` can train some of its damage away"
        )
    elif ratio is not None and ratio < _SLOWER:
        tell(
            f"slower than the original on this processor ({ratio:.2f} times its speed); "
            "`tts-compress schemes` lists others, and `evaluate` measures more exactly"
        )
    return ratio

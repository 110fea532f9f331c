"""`tts-compress qat`: compress a model by training it to sound as before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_compress.cli.arguments import GOOD, add_checkout, add_json, add_prompt, prompted
from tts_compress.errors import ArtifactError
from tts_compress.families import accepted_specs

if TYPE_CHECKING:
    from tts_compress.cli.arguments import Commands

_NUMBERS: dict[str, tuple[type, str]] = {
    "steps": (int, "updates of the weights; of a system in torch, for each component"),
    "batch-size": (int, "examples at a time"),
    "accumulation": (int, "batches that make one update"),
    "learning-rate": (float, "peak rate, for one process; by default one that suits the bits"),
    "range-learning-rate": (float, "the same for trained ranges of activations"),
    "clip": (float, "largest norm of the gradients; 0 for any"),
    "patience": (int, "evaluations on held-out examples without gain before it ends; 0: never"),
    "seed": (int, "seed of the noise and the order of examples"),
    "threads": (int, "threads of torch on the processor"),
}


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "qat", help="compress a model by training it to sound as before (minutes to hours)"
    )
    parser.add_argument("model", help=accepted_specs())
    parser.add_argument(
        "--scheme",
        default="int8-qat",
        help="target of the training: %(default)s, or int4-weight-only for models in torch",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new directory")
    parser.add_argument("--recipe", metavar="TOML", help="a recipe of your own")
    parser.add_argument(
        "--texts",
        metavar="SET",
        help="what to train on: a calibration set's name or TOML; for a bare graph an .npz",
    )
    for name, (kind, meaning) in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=meaning)
    parser.add_argument(
        "--learned-ranges",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="train the ranges of activations, too (default: yes)",
    )
    parser.add_argument(
        "--mixed-precision",
        choices=("no", "bf16", "fp16"),
        help="number format of the student's arithmetic",
    )
    parser.add_argument(
        "--matmul-precision",
        choices=("highest", "high", "medium"),
        help="precision of FP32 products on hardware that has less: high is TF32, medium bfloat16",
    )
    parser.add_argument(
        "--without-gain",
        choices=("keep", "fail"),
        help="what to do where training is no better than quantization without it",
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--resume", action="store_true", help="fail unless there is a checkpoint to resume from"
    )
    start.add_argument("--restart", action="store_true", help="drop the checkpoint that is there")
    add_prompt(parser)
    parser.add_argument("--force", action="store_true", help="replace an existing artifact")
    add_checkout(parser)
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from tts_compress.artifact import MANIFEST_NAME, Manifest, check_replaceable
    from tts_compress.compression import compress_trained, is_feeds
    from tts_compress.models import open_model
    from tts_compress.models.base import Model
    from tts_compress.qat.options import (
        TrainingOptions,
        TrainingRun,
        is_main_process,
        require_packages,
    )
    from tts_compress.terminal import human_bytes, progress_bars, show, show_json

    require_packages()
    import torch

    from tts_compress.qat.state import CHECKPOINT_NAME

    check_replaceable(options.output, MANIFEST_NAME, force=options.force)
    folder = options.output.with_name(f"{options.output.name}.training")
    # Each component of a system in torch has a folder of its own.
    if options.resume and not any(folder.rglob(CHECKPOINT_NAME)):
        raise ArtifactError(f"'{folder}' holds no checkpoint to resume from; leave --resume out")
    settings = TrainingOptions(**_given(options))
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)  # also for the teacher, before training
    model = prompted(open_model(options.model, bare=is_feeds(options.texts)), options)
    with progress_bars() as progress:
        run = TrainingRun(
            options=settings, folder=folder, restart=options.restart, progress=progress
        )
        small = compress_trained(
            model,
            options.scheme,
            recipe=options.recipe,
            calibration=options.texts,
            run=run,
        )
    if not is_main_process():
        return GOOD
    assert isinstance(small, Model), "a command line names no module"
    directory = small.save(options.output, force=options.force)
    manifest = Manifest.from_json((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
    assert manifest.training is not None
    before, after = (sum(t.values()) for t in (manifest.training.before, manifest.training.after))
    sizes = manifest.source.size_bytes, manifest.size_bytes
    if options.json:
        losses = {"loss_before": before, "loss_after": after, "steps": manifest.training.steps}
        bytes_ = {"reference_bytes": sizes[0], "candidate_bytes": sizes[1]}
        show_json({"artifact": str(directory), "log": str(folder), **losses, **bytes_})
        return GOOD
    show(f"{human_bytes(sizes[0])} → {human_bytes(sizes[1])}")
    steps = manifest.training.steps
    show(f"loss on held-out examples {before:.4g} → {after:.4g}, after {steps} steps")
    show(f"artifact: {directory}", f"log and checkpoint: {folder}")
    return GOOD


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given; the others have their defaults."""
    names = [name.replace("-", "_") for name in _NUMBERS]
    names += ["learned_ranges", "mixed_precision", "matmul_precision", "without_gain"]
    found = {name: getattr(options, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}

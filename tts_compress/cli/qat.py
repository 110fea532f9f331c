"""`tts-compress qat`: compress a model by training it to sound as before."""

import dataclasses
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace

from tts_compress.cli.arguments import GOOD, MODEL, Output, add_prompt, explain, path, prompted
from tts_compress.errors import ArtifactError

_NUMBERS: dict[str, tuple[type, str]] = {
    "steps": (int, "updates of the weights; of a system in torch, for each component"),
    "batch-size": (int, "examples at a time"),
    "accumulation": (int, "batches that make one update"),
    "learning-rate": (float, "peak rate, for one process (one that suits the bits)"),
    "range-learning-rate": (float, "the same for trained ranges of activations"),
    "clip": (float, "largest norm of the gradients; 0 for any"),
    "patience": (int, "evaluations on held-out examples without gain before it ends; 0: never"),
    "seed": (int, "seed of the noise and the order of examples"),
    "threads": (int, "threads of torch on the processor (its own choice)"),
}
_CHOICES = {
    "mixed-precision": (("no", "bf16", "fp16"), "number format of the student's arithmetic"),
    "matmul-precision": (
        ("highest", "high", "medium"),
        "precision of FP32 products on hardware that has less: high is TF32, medium bfloat16",
    ),
    "without-gain": (
        ("keep", "fail"),
        "what to do where training is no better than quantization without it",
    ),
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments; those named like a `TrainingOptions` are None by default."""
    from tts_compress.qat.options import TrainingOptions

    usual = {field.name: field.default for field in dataclasses.fields(TrainingOptions)}
    explain(
        parser,
        "qat demo --steps 200 --output out/demo-qat",
        "qat voice.onnx --scheme int4-qat --output out/voice-4",
        "qat f5-tts:DIR --output out/f5-qat",
        failed="with --without-gain fail: no gain by training",
    )
    parser.add_argument("model", help=MODEL)
    parser.add_argument(
        "--scheme",
        default="int8-qat",
        help="target of the training: int8-qat, or int4-qat for ONNX graphs and "
        "int4-weight-only for models in torch (%(default)s)",
    )
    parser.add_argument(
        "--output",
        type=path,
        required=True,
        metavar="DIR",
        help="new folder, such as out/NAME-SCHEME",
    )
    parser.add_argument("--recipe", metavar="TOML", help="a recipe of your own (the family's)")
    parser.add_argument(
        "--texts",
        metavar="SET",
        help="what to train on: a calibration set's name or TOML; for a bare graph an .npz "
        "(the recipe's)",
    )
    for name, (kind, meaning) in _NUMBERS.items():
        default = usual[name.replace("-", "_")]
        shown = meaning if default is None else f"{meaning} ({default})"
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=shown)
    parser.add_argument(
        "--learned-ranges",
        action=BooleanOptionalAction,
        help="train the ranges of activations, too (yes)",
    )
    for name, (choices, meaning) in _CHOICES.items():
        shown = f"{meaning} ({usual[name.replace('-', '_')]})"
        parser.add_argument(f"--{name}", choices=choices, help=shown)
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--resume", action="store_true", help="fail unless there is a checkpoint to resume from"
    )
    start.add_argument("--restart", action="store_true", help="drop the checkpoint that is there")
    add_prompt(parser)
    parser.add_argument("--force", action="store_true", help="replace an existing artifact")


def run(options: Namespace) -> Output:
    """Run the command."""
    from tts_compress.artifact import MANIFEST_NAME, check_replaceable, read_manifest
    from tts_compress.compression import compress_trained, is_feeds
    from tts_compress.models import open_model
    from tts_compress.models.base import Model
    from tts_compress.qat.options import (
        TrainingOptions,
        TrainingRun,
        is_main_process,
        require_packages,
    )
    from tts_compress.terminal import human_bytes, progress_bars

    require_packages()
    import torch

    from tts_compress.qat.state import CHECKPOINT_NAME

    check_replaceable(options.output, MANIFEST_NAME, force=options.force)
    folder = options.output.with_name(f"{options.output.name}.training")
    # Each component of a system in torch has a folder of its own.
    if options.resume and not any(folder.rglob(CHECKPOINT_NAME)):
        raise ArtifactError(f"'{folder}' holds no checkpoint to resume from; leave --resume out")
    given = {name: value for name, value in vars(options).items() if value is not None}
    names = given.keys() & {field.name for field in dataclasses.fields(TrainingOptions)}
    settings = TrainingOptions(**{name: given[name] for name in names})
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)  # also for the teacher, before training
    model = prompted(open_model(options.model, bare=is_feeds(options.texts)), options)
    with progress_bars() as progress:
        training = TrainingRun(
            options=settings, folder=folder, restart=options.restart, progress=progress
        )
        small = compress_trained(
            model,
            options.scheme,
            recipe=options.recipe,
            calibration=options.texts,
            run=training,
        )
    if not is_main_process():
        sys.exit(GOOD)  # the main process saves the model
    assert isinstance(small, Model), "a command line names no module"
    directory = small.save(options.output, force=options.force)
    manifest = read_manifest(directory)
    assert manifest.training is not None
    before, after = (sum(t.values()) for t in (manifest.training.before, manifest.training.after))
    steps, sizes = manifest.training.steps, (manifest.source.size_bytes, manifest.size_bytes)
    losses = {"loss_before": before, "loss_after": after, "steps": steps}
    bytes_ = {"reference_bytes": sizes[0], "candidate_bytes": sizes[1]}
    return Output(
        {"artifact": str(directory), "log": str(folder), **losses, **bytes_},
        [
            " → ".join(map(human_bytes, sizes)),
            f"loss on held-out examples {before:.4g} → {after:.4g}, after {steps} steps",
            f"artifact: {directory}",
            f"log and checkpoint: {folder}",
        ],
    )

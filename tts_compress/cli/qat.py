"""Compress a model by training it to sound as before, for minutes to hours.

Examples:
    qat demo --steps 200 --output out/demo-qat
    qat voice.onnx --scheme int4-qat --output out/voice-4
    qat f5-tts:DIR --output out/f5-qat
"""

import sys
from argparse import Namespace
from dataclasses import asdict

from tts_compress.cli.command import (
    GOOD,
    MODEL,
    NEW_ARTIFACT,
    PROMPT,
    Command,
    Option,
    Output,
    damage_heard,
    options_from,
    prompted,
)
from tts_compress.errors import ArtifactError
from tts_compress.qat.options import (
    CHECKPOINT_NAME,
    TrainingOptions,
    TrainingRun,
    is_main_process,
    require_packages,
)

COMMAND = Command(
    __doc__,
    Option("model", MODEL),
    Option(
        "--scheme SCHEME",
        "target of the training: int8-qat, or int4-qat for ONNX graphs and "
        "int4-weight-only for models in torch",
        default="int8-qat",
    ),
    *NEW_ARTIFACT,
    Option(
        "--texts SET",
        "what to train on: a calibration set's name or TOML; for a bare graph an .npz "
        "(the recipe's)",
    ),
    *Option.each_of(TrainingOptions),
    (
        Option("--resume", "fail unless there is a checkpoint to resume from"),
        Option("--restart", "drop the checkpoint that is there"),
    ),
    *PROMPT,
    Option("--force", "replace an existing artifact"),
    resumes=True,
)


def run(options: Namespace) -> Output:
    """Train the model, save it, and print what the training gained."""
    from tts_compress.artifact import MANIFEST_NAME, check_replaceable, read_manifest
    from tts_compress.compression import compress_trained, is_feeds
    from tts_compress.models import open_model
    from tts_compress.models.base import Model
    from tts_compress.terminal import human_bytes, progress_bars

    require_packages()
    check_replaceable(options.output, MANIFEST_NAME, force=options.force)
    folder = options.output.with_name(f"{options.output.name}.training")
    # Each component of a system in torch has a folder of its own.
    if options.resume and not any(folder.rglob(CHECKPOINT_NAME)):
        raise ArtifactError(f"'{folder}' holds no checkpoint to resume from; leave --resume out")
    settings = options_from(options, TrainingOptions)
    model = prompted(open_model(options.model, bare=is_feeds(options.texts)), options)
    if settings.threads is not None:
        import torch

        torch.set_num_threads(settings.threads)  # also for the teacher, before training
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
    sound = damage_heard(model, open_model(str(directory)), settings.seed)
    losses = {"loss_before": before, "loss_after": after, "steps": steps}
    bytes_ = {"reference_bytes": sizes[0], "candidate_bytes": sizes[1]}
    return Output(
        {
            "artifact": str(directory),
            "log": str(folder),
            **losses,
            **bytes_,
            "sound": asdict(sound) if sound else None,
        },
        [
            " → ".join(map(human_bytes, sizes)),
            f"loss on held-out examples {before:.4g} → {after:.4g}, after {steps} steps",
            *([] if sound is None else [sound.describe()]),
            f"artifact: {directory}",
            f"log and checkpoint: {folder}",
        ],
    )

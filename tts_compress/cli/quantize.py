"""`tts-compress quantize`: compress a model and save the artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.cli.arguments import GOOD, add_checkout, add_json, add_prompt, prompted
from tts_compress.families import accepted_specs

if TYPE_CHECKING:
    import argparse

    from tts_compress.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("quantize", help="compress a model and save the artifact")
    parser.add_argument("model", help=accepted_specs())
    parser.add_argument("--scheme", default="int8", help="see `tts-compress schemes` (%(default)s)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new directory")
    parser.add_argument("--recipe", metavar="TOML", help="a recipe of your own")
    parser.add_argument(
        "--format",
        choices=("qdq", "qoperator"),
        help="of calibrated integers: standard operators, which other runtimes load, or "
        "onnxruntime's own, which are faster there (the recipe's)",
    )
    parser.add_argument(
        "--calibration",
        metavar="SET",
        help="a calibration set's name or TOML; for a bare graph an .npz of its inputs",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the calibration noise (0)")
    add_prompt(parser)
    parser.add_argument("--force", action="store_true", help="replace an existing artifact")
    add_checkout(parser)
    add_json(parser)
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from tts_compress.artifact import MANIFEST_NAME, Manifest, check_replaceable
    from tts_compress.compression import compress, is_feeds
    from tts_compress.models import open_model
    from tts_compress.recipes.family import find_recipe
    from tts_compress.terminal import human_bytes, progress_bars, show, show_json

    # Before minutes of work, not after them.
    check_replaceable(options.output, MANIFEST_NAME, force=options.force)
    model = prompted(open_model(options.model, bare=is_feeds(options.calibration)), options)
    recipe = options.recipe
    if options.format is not None:
        found = find_recipe(model.family, options.scheme, recipe)
        recipe = found.model_copy(update={"format": options.format})
    with progress_bars() as progress:
        small = compress(
            model,
            options.scheme,
            recipe=recipe,
            calibration=options.calibration,
            seed=options.seed,
            progress=progress,
        )
    directory = small.save(options.output, force=options.force)
    manifest = Manifest.from_json((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
    before, after = manifest.source.size_bytes, manifest.size_bytes
    if options.json:
        sizes = {"reference_bytes": before, "candidate_bytes": after}
        show_json({"artifact": str(directory), "scheme": manifest.scheme, **sizes})
        return GOOD
    show(f"{human_bytes(before)} → {human_bytes(after)}, {before / after:.2f} times smaller")
    show(*(f"  {count:4d} × {label}" for label, count in manifest.counts.items()))
    show(f"artifact: {directory}")
    return GOOD

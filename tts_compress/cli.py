"""The `tts-compress` command: one subcommand per stage, parsing only."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ArtifactError, ModelError, TTSCompressError, TTSCompressWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from tts_compress.models.base import TTSModel

    _Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  no public name

__all__ = ["main"]

_GOOD, _GATE_FAILED, _BAD_USE, _INTERRUPTED = 0, 1, 2, 130
_MODEL = (
    "'demo', a voice's .onnx, a training .ckpt, an artifact's directory, or 'f5-tts:' or "
    "'parler-tts:' before a directory or a hub's name"
)
_ANY_MODEL = f"{_MODEL}; of any other graph 'onnx:PATH'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 good, 1 a gate failed, 2 usage or bad input."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        with _plain_warnings():
            return command(options)
    except TTSCompressError as error:
        print(f"tts-compress: {' '.join(str(error).split())}", file=sys.stderr)
        return _BAD_USE
    except KeyboardInterrupt:
        print("tts-compress: interrupted; run it again to go on", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has gone; point stdout elsewhere so that closing it stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _GOOD


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each of our own warnings once, as a line for people."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if issubclass(category, TTSCompressWarning):
                print(f"tts-compress: note: {message}", file=sys.stderr)
            else:
                before(message, category, *rest)

        warnings.simplefilter("once", TTSCompressWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tts-compress",
        description="Make text-to-speech models small and fast, and prove what that cost.",
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_quantize, _evaluate, _gate, _synthesize, _export, _inspect, _schemes):
        add(commands)
    return parser


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"tts-compress {version('tts-compress')}")
        parser.exit()


def _quantize(commands: _Commands) -> None:
    parser = commands.add_parser("quantize", help="compress a model and save the artifact")
    parser.add_argument("model", help=_ANY_MODEL)
    parser.add_argument("--scheme", default="int8", help="see `tts-compress schemes` (%(default)s)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new directory")
    parser.add_argument("--recipe", metavar="TOML", help="a recipe of your own")
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="processor it is made for: host, x86-vnni, x86, arm64 or a target's TOML (host)",
    )
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
    parser.add_argument("--force", action="store_true", help="replace an existing artifact")
    _add_json(parser)
    parser.set_defaults(command=_run_quantize)


def _run_quantize(options: argparse.Namespace) -> int:
    from tts_compress.artifact import MANIFEST_NAME, check_replaceable, read_manifest
    from tts_compress.models import open_model
    from tts_compress.quantize import compress
    from tts_compress.quantize.calibration import is_feeds
    from tts_compress.recipe import find_recipe
    from tts_compress.terminal import human_bytes, progress_bars, show, show_json

    # Before minutes of work, not after them.
    check_replaceable(options.output, MANIFEST_NAME, force=options.force)
    model = open_model(options.model, bare=is_feeds(options.calibration))
    recipe = find_recipe(model.family, options.scheme, options.recipe)
    given = {"target": options.target, "format": options.format}
    changes = {key: value for key, value in given.items() if value is not None}
    with progress_bars() as progress:
        small = compress(
            model,
            options.scheme,
            recipe=recipe.model_copy(update=changes),
            calibration=options.calibration,
            seed=options.seed,
            progress=progress,
        )
    directory = small.save(options.output, force=options.force)
    manifest = read_manifest(directory)
    before, after = manifest.source.size_bytes, manifest.size_bytes
    if options.json:
        sizes = {"reference_bytes": before, "candidate_bytes": after}
        target = {"target": manifest.target["name"] if manifest.target else None}
        show_json({"artifact": str(directory), "scheme": manifest.scheme, **target, **sizes})
        return _GOOD
    show(f"{human_bytes(before)} → {human_bytes(after)}, {before / after:.2f} times smaller")
    show(*(f"  {count:4d} × {label}" for label, count in manifest.counts.items()))
    made_for = f", made for {manifest.target['name']}" if manifest.target else ""
    show(f"artifact: {directory}{made_for}")
    return _GOOD


def _evaluate(commands: _Commands) -> None:
    parser = commands.add_parser("evaluate", help="compare a compressed model with its reference")
    parser.add_argument("reference", help=f"the FP32 model: {_MODEL}")
    parser.add_argument("candidate", help="the compressed one, likewise")
    parser.add_argument("--suite", default="en-quick", help="a suite's name or TOML (%(default)s)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="for the report")
    parser.add_argument("--threads", type=int, default=1, help="of each model (%(default)s)")
    parser.add_argument("--jobs", type=int, help="recognizers at a time (all processors)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="noise seeds of each text, in place of the suite's"
    )
    parser.add_argument(
        "--runtime",
        action="append",
        default=[],
        choices=("plain-attention", "compile"),
        help="time torch models in this way too; may be repeated",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing report")
    _add_json(parser)
    parser.set_defaults(command=_run_evaluate)


def _run_evaluate(options: argparse.Namespace) -> int:
    from tts_compress.evaluate import EvaluationOptions, evaluate
    from tts_compress.report import summary_table
    from tts_compress.terminal import progress_bars, show, show_json

    if (options.output / "report.json").exists() and not options.force:
        raise ArtifactError(
            f"'{options.output}' has a report; use --force to replace it, or another output"
        )
    with progress_bars() as progress:
        chosen = EvaluationOptions(
            threads=options.threads,
            jobs=options.jobs if options.jobs is not None else os.cpu_count() or 1,
            seeds=tuple(options.seeds) if options.seeds else None,
            runtimes=tuple(options.runtime),
            progress=progress,
        )
        result = evaluate(
            options.reference,
            options.candidate,
            suite=options.suite,
            output=options.output,
            options=chosen,
        )
    directory = result.write(options.output)
    if options.json:
        show_json(result.model_dump(mode="json", exclude={"utterances"}))
        return _GOOD
    show(summary_table(result), f"report: {directory / 'report.html'}")
    return _GOOD


def _gate(commands: _Commands) -> None:
    parser = commands.add_parser("gate", help="pass or fail a report; exits 1 when it fails")
    parser.add_argument("report", type=Path, help="report.json, or its directory")
    parser.add_argument("--gates", default="default", help="a gate file's name or TOML")
    _add_json(parser)
    parser.set_defaults(command=_run_gate)


def _run_gate(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from tts_compress.evaluate import check, read_gates
    from tts_compress.report import read_report
    from tts_compress.terminal import show, show_json

    verdict = check(read_report(options.report), read_gates(options.gates))
    if options.json:
        rows = [{**asdict(row), "gate": row.gate.model_dump()} for row in verdict.rows]
        show_json({"passed": verdict.passed, "rows": rows})
    else:
        for row in verdict.rows:
            value = "missing" if row.value is None else f"{row.value:.6g}"
            sign = "≤" if row.gate.direction == "at-most" else "≥"
            mark = "pass" if row.passed else "FAIL"
            against = f" / {row.gate.baseline}" if row.gate.baseline else ""
            show(f"{mark}  {row.gate.metric}{against}: {value} {sign} {row.gate.limit:g}")
        show("all gates passed" if verdict.passed else "a gate failed")
    return _GOOD if verdict.passed else _GATE_FAILED


def _synthesize(commands: _Commands) -> None:
    parser = commands.add_parser("synthesize", help="speak a text into a WAV file")
    parser.add_argument("model", help=_MODEL)
    parser.add_argument("text")
    parser.add_argument("--output", type=Path, required=True, metavar="WAV")
    noise = parser.add_mutually_exclusive_group()
    noise.add_argument("--seed", type=int, default=0, help="of the noise (%(default)s)")
    noise.add_argument("--no-noise", action="store_true", help="speak without any")
    parser.add_argument("--reference", type=Path, metavar="WAV", help="a recording to speak like")
    parser.add_argument("--reference-text", metavar="TEXT", help="what is said in it")
    parser.add_argument("--description", metavar="TEXT", help="how to speak, in words")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    _add_json(parser)
    parser.set_defaults(command=_run_synthesize)


def _run_synthesize(options: argparse.Namespace) -> int:
    from tts_compress.audio import write_wav
    from tts_compress.models import load
    from tts_compress.terminal import show, show_json

    if options.output.exists() and not options.force:
        raise ArtifactError(f"'{options.output}' exists; use --force to replace it")
    model = _prompted(load(options.model), options)
    audio = model.synthesize(options.text, seed=None if options.no_noise else options.seed)
    write_wav(options.output, audio)
    if options.json:
        show_json(
            {
                "audio": str(options.output),
                "seconds": audio.duration_s,
                "sample_rate": audio.sample_rate,
            }
        )
    else:
        show(f"{audio.duration_s:.2f} s of speech: {options.output}")
    return _GOOD


def _prompted(model: TTSModel, options: argparse.Namespace) -> TTSModel:
    """Return a model with the prompt that was given on the command line."""
    from tts_compress.models.base import Prompt, Prompted

    given = (options.reference, options.reference_text, options.description)
    if given == (None, None, None):
        return model
    if not isinstance(model, Prompted):
        raise ModelError(f"'{model.spec}' speaks by no prompt; leave reference and description out")
    audio, text, description = given
    return model.with_prompt(Prompt(audio=audio, text=text, description=description))


def _export(commands: _Commands) -> None:
    parser = commands.add_parser("export", help="write a torch system's ONNX graphs")
    parser.add_argument("model", help="'f5-tts:…' or 'parler-tts:…', not compressed")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new directory")
    parser.add_argument(
        "--feeds",
        metavar="SET",
        help="also record what the graphs are given for the first 8 texts of a calibration set, "
        "for `quantize onnx:GRAPH --calibration GRAPH.npz`",
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")
    _add_json(parser)
    parser.set_defaults(command=_run_export)


def _run_export(options: argparse.Namespace) -> int:
    from tts_compress.export import export, record_feeds
    from tts_compress.models import load
    from tts_compress.models.base import TorchModel
    from tts_compress.recipe import read_calibration_set
    from tts_compress.terminal import show, show_json

    model = load(options.model)
    if not isinstance(model, TorchModel):
        raise ModelError(f"'{options.model}' is an ONNX graph already; export takes torch systems")
    texts = read_calibration_set(options.feeds).texts[:8] if options.feeds else ()
    files = export(model, options.output, force=options.force)
    if texts:
        files += record_feeds(model, texts, options.output)
    if options.json:
        show_json({"files": [str(path) for path in files]})
    else:
        show(*(f"written: {path}" for path in files))
    return _GOOD


def _inspect(commands: _Commands) -> None:
    parser = commands.add_parser("inspect", help="show a model's components and how it was made")
    parser.add_argument("model", help=_ANY_MODEL)
    _add_json(parser)
    parser.set_defaults(command=_run_inspect)


def _run_inspect(options: argparse.Namespace) -> int:
    from tts_compress.inspection import inspect_model, inspection_tables
    from tts_compress.models import open_model
    from tts_compress.terminal import show, show_json

    found = inspect_model(open_model(options.model))
    if options.json:
        show_json(found)
    else:
        show(*inspection_tables(found))
    return _GOOD


def _schemes(commands: _Commands) -> None:
    parser = commands.add_parser("schemes", help="list what can be done to which family")
    _add_json(parser)
    parser.set_defaults(command=_run_schemes)


def _run_schemes(options: argparse.Namespace) -> int:
    from tts_compress.models import FAMILIES
    from tts_compress.recipe import schemes_of
    from tts_compress.schemes import SCHEMES
    from tts_compress.terminal import show, show_json

    families = {name: schemes_of(name) for name in FAMILIES}
    rows: list[dict[str, Any]] = [
        {
            "scheme": scheme.name,
            "summary": scheme.summary,
            "families": [name for name, schemes in families.items() if scheme.name in schemes],
        }
        for scheme in SCHEMES
    ]
    if options.json:
        show_json({"schemes": rows})
        return _GOOD
    for row in rows:
        show(f"{row['scheme']:<18}{row['summary']} ({', '.join(row['families'])})")
    return _GOOD


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


if __name__ == "__main__":
    sys.exit(main())

"""An artifact for others: its card, a README.md as hubs read it, and its way to a hub."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tts_compress.artifact import (
    CARD_NAME,
    MANIFEST_NAME,
    REPOSITORY,
    Manifest,
    read_manifest,
    write_text_atomically,
)
from tts_compress.errors import ArtifactError, EvaluationError, needing, raising
from tts_compress.evaluation import Evaluation, formatting
from tts_compress.families import families
from tts_compress.models.speakers import primary_language
from tts_compress.plain import harmless
from tts_compress.report.markdown import escape, measurements, table
from tts_compress.report.summary import cautions, verdict

_HUB_NAME = re.compile(r"[\w-]+:(?P<name>[\w.-]+/[\w.-]+)(\?.*)?")
_WEIGHTS = (".onnx", ".safetensors", ".pt")

_PIPER = """\
```sh
pip install piper-tts
python -m piper --model {graph} --output-file hello.wav -- "Hello there."
```"""

_SPEAK = """\
```sh
pip install 'tts-compress[{extra}]'
tts-compress synthesize . "Hello there." --output hello.wav
```"""

_GRAPH = "The graph {graph} has the inputs and outputs of the original, for onnxruntime."


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """Facts for a card that the artifact does not state."""

    report: Evaluation | None = None
    """An evaluation of the artifact."""

    licence: str | None = None
    """Identifier of the licence, as hubs write it: `apache-2.0`, `mit`, `cc-by-4.0`."""

    base_model: str | None = None
    """The original's name on the hub; None takes it from a spec that is such a name."""

    language: str | None = None
    """None takes that of the report."""


def write_card(directory: Path, facts: CardFacts, *, force: bool = False) -> Path:
    """Write the card of an artifact into its directory; return its path.

    Raises:
        ArtifactError: There is no artifact, it was altered, or there is a card and no `force`, or
            a link in its place.
        EvaluationError: The report is of another model.
    """
    manifest, path = read_manifest(directory), directory / CARD_NAME
    if path.is_symlink():  # it may lead to any file of the user's
        raise ArtifactError(f"'{path}' is a link; remove it")
    if path.exists() and not force:
        raise ArtifactError(f"'{path}' exists; use --force to replace it")
    write_text_atomically(path, render_card(manifest, facts))
    return path


def render_card(manifest: Manifest, facts: CardFacts) -> str:
    """Return the card.

    Raises:
        EvaluationError: The report is of another model.
    """
    if facts.report is not None:
        _refuse_foreign_report(manifest, facts.report)
    named = _HUB_NAME.fullmatch(manifest.source.spec)
    if facts.base_model is None and named is not None:
        facts = replace(facts, base_model=named["name"])
    licence = "Not stated here. Compression changes no rights: the original's licence applies."
    if facts.licence is not None:
        licence = f"{_code(facts.licence)}."
    blocks = [
        f"---\n{_header(manifest, facts)}---",
        f"# {escape(_source_name(manifest))}, {escape(manifest.scheme)}",
        _claim(manifest, facts),
        "## Play it",
        _playing(manifest),
        "## Figures",
        _figures(facts.report),
        "## How it was made",
        _making(manifest),
        "## Licence",
        licence,
    ]
    return "\n\n".join(blocks) + "\n"


def _refuse_foreign_report(manifest: Manifest, report: Evaluation) -> None:
    stated, compared, right = report.candidate, report.candidate, weights_of(manifest)
    if right is None:  # the original tells, where it is known
        compared, right = report.reference, manifest.source.sha256
    if right not in ("", compared.sha256) or stated.scheme != manifest.scheme:
        raise EvaluationError(
            f"the report is of '{stated.spec}' ({stated.scheme}), whose "
            "weights are not this artifact's; evaluate the artifact, or leave --report out"
        )


def weights_of(manifest: Manifest) -> str | None:
    """Return the hash of an artifact's weights as reports state it.

    None where several files have them: reports state one hash over all, in the model's order.
    """
    digests = [digest for name, digest in manifest.files.items() if name.endswith(_WEIGHTS)]
    return digests[0] if len(digests) == 1 else None


def _header(manifest: Manifest, facts: CardFacts) -> str:
    """Return the YAML between the rules: each value is JSON, which YAML contains."""
    language = facts.language or (facts.report and facts.report.candidate.language)
    entries: dict[str, Any] = {
        "license": facts.licence,
        "language": primary_language(language) if language else None,
        "base_model": facts.base_model,
        "base_model_relation": "quantized" if facts.base_model else None,
        "pipeline_tag": "text-to-speech",
        "tags": ["tts-compress", manifest.family, manifest.scheme, "quantized"],
        "model-index": None if facts.report is None else _results(manifest, facts.report),
    }
    lines = [
        f"{key}: {harmless(json.dumps(value, ensure_ascii=False))}"
        for key, value in entries.items()
        if value is not None
    ]
    return "\n".join(lines) + "\n"


def _results(manifest: Manifest, report: Evaluation) -> list[Mapping[str, Any]] | None:
    """Return the word error rate as the hub's leaderboards read it, in per cent.

    None where no recognizer listened: 100 % would be the rate of whoever says nothing.
    """
    if report.suite.recognizer_name == "none":
        return None
    listener = report.suite.recognizer_name or report.suite.recognizer
    name = f"Word error rate by {formatting.plain(listener)}"
    metric = {"type": "wer", "name": name, "value": round(100 * report.wer.candidate, 2)}
    result = {
        "task": {"type": "text-to-speech"},
        "dataset": {"type": "tts-compress-suite", "name": formatting.plain(report.suite.name)},
        "metrics": [metric],
    }
    return [{"name": f"{_source_name(manifest)} {manifest.scheme}", "results": [result]}]


def _claim(manifest: Manifest, facts: CardFacts) -> str:
    before, after = manifest.source.size_bytes, manifest.size_bytes
    name = _code(facts.base_model) if facts.base_model else escape(_source_name(manifest))
    opening = f"{name} compressed by [tts-compress]({REPOSITORY})"
    if facts.report is not None:
        return f"{opening}. {escape(verdict(facts.report))}"
    size = formatting.times(before / after, "smaller", "larger") if after else "of unknown size"
    return f"{opening}: {formatting.bytes_of(after)}, {size}."


def _playing(manifest: Manifest) -> str:
    graph = next((name for name in sorted(manifest.files) if name.endswith(".onnx")), "")
    if manifest.family == "onnx":
        return _GRAPH.format(graph=_code(graph))
    family = families().get(manifest.family)
    speak = _SPEAK.format(extra=family.extra if family else "torch")
    if manifest.family == "piper":
        return f"{_PIPER.format(graph=shlex.quote(formatting.plain(graph)))}\n\nor\n\n{speak}"
    return speak


def _figures(report: Evaluation | None) -> str:
    if report is None:
        return "Not evaluated; `tts-compress evaluate ORIGINAL . --output report` does it."
    suite, machine = report.suite, report.environment.get("processor", {}).get("model", "?")
    seeds = formatting.count(len(suite.seeds), "seed")
    origin = (
        f"Suite {_code(suite.name)} ({suite.texts} texts, {seeds}); recognizer: "
        f"{escape(suite.recognizer)}; times on {report.latency.threads} thread(s) of "
        f"{escape(str(machine))}. The same texts with the same noise for both models; changes "
        "with 95 % intervals."
    )
    warned = "\n".join(f"> {escape(caution)}" for caution in cautions(report))
    return "\n\n".join(filter(None, (warned, measurements(report), origin)))


def _making(manifest: Manifest) -> str:
    packages = manifest.environment.get("packages", {})
    calibration, training = manifest.calibration, manifest.training
    facts = {
        "scheme": manifest.scheme,
        "original": f"{_source_name(manifest)}, SHA-256 {manifest.source.sha256}",
        "bytes": f"{manifest.source.size_bytes} to {manifest.size_bytes}",
        "calibration": calibration
        and f"{calibration.utterances} texts of {calibration.set!r}, {calibration.observer}",
        "training": training and f"{training.steps} steps on the original's outputs",
        "operators": ", ".join(f"{count} × {name}" for name, count in manifest.counts.items()),
        "versions": ", ".join(
            f"{name} {packages[name]}" for name in ("tts-compress", "onnxruntime", "torch")
            if name in packages
        ),
        "seed": str(manifest.seed),
    }  # fmt: skip
    rows = [(name, value) for name, value in facts.items() if value]
    closing = "`manifest.json` has the recipe, every layer's format, and the hash of every file."
    return f"{table('ll', ('About', 'Value'), rows)}\n\n{closing}"


def _code(text: str) -> str:
    """Return a text of others as code on one line; nothing escapes a backtick in it."""
    return f"`{formatting.plain(text).replace('`', '') or '?'}`"


def _source_name(manifest: Manifest) -> str:
    """Return the original's name without the folders of the machine that compressed it."""
    location = manifest.source.spec.partition("?")[0].rstrip("/")
    return formatting.one_line(Path(location.partition(":")[2] or location).name, 80)


def push(directory: Path, repository: str, *, private: bool, message: str) -> str:
    """Publish an artifact and its card as one commit; return its URL.

    The repository is made where there is none. Only files of the artifact are sent, and no link:
    it may lead to a file of yours that is nobody else's business. The token is the one that
    `hf auth login` stored, or `HF_TOKEN`; `HF_ENDPOINT` names another hub.

    Args:
        directory: The artifact, with its card.
        repository: `owner/name`.
        private: Make a new repository private.
        message: Of the commit.

    Raises:
        ArtifactError: There is no artifact or no card, it was altered or has links, or the hub
            refuses or cannot be reached.
        MissingExtraError: huggingface_hub is not installed.
    """
    with needing("hub"):
        from huggingface_hub import CommitOperationAdd, HfApi
    names = (*read_manifest(directory).files, MANIFEST_NAME, CARD_NAME)
    if not (directory / CARD_NAME).is_file():
        raise ArtifactError(
            f"'{directory}' has no {CARD_NAME}; write one first: tts-compress card '{directory}'"
        )
    root = directory.resolve()
    for name in names:
        if (root / name).resolve() != root / name:
            raise ArtifactError(
                f"'{directory / name}' is a link; only files are published: put a copy in its place"
            )
    api = HfApi(library_name="tts-compress")
    problem = f"cannot publish '{repository}'"
    advice = "check the name, the token (`hf auth login`) and the network"
    # Without a network, the error is that of whichever HTTP client it is built on.
    with raising(ArtifactError, problem, Exception, advice=advice):
        created = api.create_repo(repository, private=private, exist_ok=True)
        commit = api.create_commit(
            created.repo_id,
            [CommitOperationAdd(name, directory / name) for name in names],
            commit_message=message,
        )
    return str(commit.commit_url)

"""A model under evaluation: its files, identity and speakers, and how a worker starts it."""

import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from tts_compress.artifact import sha256_of
from tts_compress.errors import EvaluationError, ModelError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker, borrow
from tts_compress.evaluation.result import ModelIdentity
from tts_compress.evaluation.suite import prompt_content
from tts_compress.models import load
from tts_compress.models.base import Model, ModelFiles, Prompt, Speaking, TorchModel, TTSModel
from tts_compress.models.checkout import find_checkout, known_upstreams
from tts_compress.models.execution import PROCESSOR, Execution, execution_of
from tts_compress.models.speakers import primary_language, speakers_in_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model as the stages know it."""

    model: TTSModel
    files: ModelFiles
    location: str
    """A model spec a worker can load."""

    fingerprint: str
    """Hash of everything that decides how it speaks."""

    sha256: str = ""
    """SHA-256 of its weights, for the report."""

    told: Speaking = field(default_factory=Speaking)
    """The prompt and language that a worker is told: those of its files may be others."""

    speakers: tuple[str, ...] = ()
    """Names of the speakers that texts go round; empty for a model of one voice."""

    is_varied: bool = False
    """It speaks with slightly other weights, for a second rendering of a voice without noise."""

    def varied(self) -> "Subject":
        """Return this model with slightly other weights; a voice in ONNX."""
        return replace(self, is_varied=True, fingerprint=_sha256(f"{self.fingerprint}\nvaried"))

    def speaker_of(self, text: int) -> str | None:
        """Return the speaker of a suite's text, by its place."""
        return self.speakers[text % len(self.speakers)] if self.speakers else None

    def start(self, options: EvaluationOptions) -> AbstractContextManager[Worker]:
        """Give a worker that has this model, prompted, until the block ends.

        Where one speaker alone speaks the texts, that is the worker's.

        Raises:
            EvaluationError: It did not start, or cannot speak by the prompt.
        """
        key = (self.location, self.fingerprint, self.speakers, options.worker)
        return borrow(options.kept, key, partial(self._open, options))

    def _open(self, options: EvaluationOptions) -> Worker:
        stated = execution_of(self.model).stated()
        worker = Worker(
            "model",
            self.location,
            options,
            shown=self.model.spec,
            setting=json.dumps(stated) if stated else None,
        )
        try:
            worker.ask(
                "speak_as",
                prompt=self.told.prompt and asdict(self.told.prompt),
                language=self.told.language,
                speaker=self.speakers[0] if len(self.speakers) == 1 else None,
                varied=self.is_varied,
            )
        except BaseException:
            worker.close()
            raise
        return worker

    def identity(self) -> ModelIdentity:
        """Return its identity for the report."""
        manifest = self.model.manifest
        return ModelIdentity(
            spec=self.model.spec,
            family=self.model.family,
            scheme=manifest.scheme if manifest else "fp32",
            sha256=self.sha256,
            language=self.model.speaking.language,
            settings=_settings(self.model)
            | self._speaker_setting()
            | execution_of(self.model).stated(),
        )

    def _speaker_setting(self) -> dict[str, str]:
        if not self.speakers:
            return {}
        turns = f"{len(self.speakers)} in turn, text by text"
        return {"speaker": self.speakers[0] if len(self.speakers) == 1 else turns}


def open_subject(
    subject: TTSModel | str | Path,
    spare: Path | None,
    prompt: Prompt | None = None,
    language: str | None = None,
    execution: Execution = PROCESSOR,
) -> Subject:
    """Return a model with its files, and how a worker starts it.

    Args:
        subject: The model, or its spec.
        spare: A folder for one that is in memory only; None where it cannot be.
        prompt: The suite's prompt; models that speak without one ignore it.
        language: The suite's language, for a model of several that states none.
        execution: The place where a model computes that is given by its spec.
    """
    model = _load(subject, execution) if isinstance(subject, str | Path) else subject
    if not isinstance(model, TTSModel):
        shown = getattr(model, "spec", type(model).__name__)
        raise ModelError(
            f"{shown!r} speaks no texts, so there is nothing to evaluate; give a voice, a system's "
            "model, or two torch modules with batches"
        )
    opened: Model | None = None if model is subject else model
    try:
        files, location = model.files(), model.spec
    except ModelError:
        if spare is None:
            raise
        # Compressed in memory: the worker, and the size, need files.
        location = str(model.save(spare / "model"))
        opened = load(location)
        files = opened.files()
    # Opening an artifact has compared its files with their hashes.
    manifest = None if opened is None else opened.manifest
    stated = {} if manifest is None else manifest.files
    checked = {Path(location, name): digest for name, digest in stated.items()}
    weights, settings = (
        [checked.get(path) or sha256_of(path) for path in paths]
        for paths in (files.weights, files.settings)
    )
    asked = _asked(model.speaking, prompt, language)
    model = model.speaking_as(asked)
    # Whoever gives a model may have chosen how it speaks; a spec says it to the worker, too.
    told = asked if isinstance(subject, str | Path) else _chosen(model.speaking)
    return Subject(
        model=model,
        files=files,
        location=location,
        fingerprint=_fingerprint([*weights, *settings], location, model),
        sha256=weights[0] if len(weights) == 1 else _sha256("".join(weights)),
        told=told,
    )


def _asked(present: Speaking, prompt: Prompt | None, language: str | None) -> Speaking:
    """Return how a suite asks a model to speak: by its prompt, in its language of several."""
    code = primary_language(language) if language and present.language is None else None
    return Speaking(
        languages=(code,) if code in present.languages else (),
        prompt=None if present.prompt is None else prompt,
    )


def _chosen(speaking: Speaking) -> Speaking:
    language = speaking.language
    return Speaking(languages=(language,) if language else (), prompt=speaking.prompt)


def _load(spec: str | Path, execution: Execution) -> TTSModel:
    try:
        return load(spec, **execution.stated())
    except ModelError as error:
        folder = Path(spec)
        if not (folder.is_dir() and any(folder.glob("*.wav"))):
            raise
        raise EvaluationError(
            f"'{spec}' is a folder of recordings, which cannot be compared; give two models "
            "that speak, such as voice.onnx and the folder that `tts-compress quantize` made of it"
        ) from error


def _fingerprint(digests: Iterable[str], location: str, model: TTSModel) -> str:
    """Return the hash of everything that decides how a model speaks, in its files or not.

    A Piper voice with the same weights speaks at another speed if its `.onnx.json` states one.
    """
    speaking = model.speaking
    parts = {
        "options": location.partition("?")[2],  # such as `nfe_step=16`
        "prompt": speaking.prompt and prompt_content(speaking.prompt),
        "language": speaking.language,
        "upstream": _upstream_commit(model),
        "execution": execution_of(model).stated(),
    }
    return _sha256("\n".join([*digests, json.dumps(parts, sort_keys=True)]))


def _settings(model: TTSModel) -> dict[str, str]:
    """Return the inference settings of a system that can be run in several ways."""
    if not isinstance(model, TorchModel):
        return {}
    settings = {name: str(value) for name, value in model.describe().items()}
    commit = _upstream_commit(model)
    return settings if commit is None else settings | {"upstream commit": commit}


def _upstream_commit(model: TTSModel) -> str | None:
    """Return the commit of the clone that a model's system runs from; None for a package."""
    for upstream in known_upstreams():
        if upstream.family == model.family and upstream.variable in os.environ:
            return find_checkout(upstream).commit or "unknown"
    return None


def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def give_speakers(models: tuple[Subject, Subject], wanted: str | None) -> tuple[Subject, Subject]:
    """Return reference and candidate with the speakers that texts go round.

    Args:
        models: Reference and candidate.
        wanted: Name or id of the only one; None for the one that was chosen for a given model,
            or for all.

    Raises:
        EvaluationError: The models do not have the same speakers, or speak as different ones.
        ModelError: There is no such speaker.
    """
    before, after = models
    reference, candidate = before.model, after.model
    if dict(reference.speakers) != dict(candidate.speakers):
        raise EvaluationError(
            f"'{reference.spec}' {_described(reference)} and '{candidate.spec}' "
            f"{_described(candidate)}; give a candidate that was made from the reference"
        )
    if wanted is not None:
        reference = candidate = reference.speaking_as(Speaking(speaker=wanted))
    turns = {speakers_in_turn(model) for model in (reference, candidate)}
    chosen = {names for names in turns if len(names) == 1}
    if len(chosen) > 1:
        shown = " and ".join(sorted(name for (name,) in chosen))
        raise EvaluationError(
            f"reference and candidate speak as different speakers, {shown}; give both the same, "
            "or name one in the options"
        )
    names = (chosen or turns).pop()
    return replace(before, speakers=names), replace(after, speakers=names)


def _described(model: TTSModel) -> str:
    names = [f"{name:.40}" for name in list(model.speakers)[:4]]
    more = ", …" if len(model.speakers) > len(names) else ""
    return f"has the speakers {', '.join(names)}{more}" if names else "has one speaker"

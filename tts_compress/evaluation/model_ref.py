"""A model under evaluation: its files, its identity, and how a worker starts it."""

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tts_compress.artifact import sha256_of
from tts_compress.errors import EvaluationError, ModelError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.result import ModelIdentity
from tts_compress.evaluation.suite import SuitePrompt
from tts_compress.models.base import ModelFiles, Prompted, TorchModel, TTSModel
from tts_compress.models.checkout import find_checkout, known_upstreams


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """A model as the stages know it."""

    location: str
    """A model spec a worker can load."""

    shown: str
    """Its name in messages."""

    fingerprint: str
    prompt: SuitePrompt | None = None
    """The prompt it speaks by; None leaves it as it is."""

    def start(self, options: EvaluationOptions) -> Worker:
        """Return a worker that has this model, prompted; a context manager.

        Raises:
            EvaluationError: It did not start, or cannot speak by the prompt.
        """
        worker = Worker("model", self.location, options.workers, shown=self.shown)
        if self.prompt is None:
            return worker
        try:
            worker.ask("prompt", **self.prompt.model_dump())
        except BaseException:
            worker.close()
            raise
        return worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model that has files."""

    model: TTSModel
    files: ModelFiles
    ref: ModelRef

    def identity(self) -> ModelIdentity:
        """Return its identity for the report."""
        manifest = self.model.manifest
        digests = [sha256_of(path) for path in self.files.weights]
        return ModelIdentity(
            spec=self.model.spec,
            family=self.model.family,
            scheme=manifest.scheme if manifest else "fp32",
            sha256=digests[0] if len(digests) == 1 else _sha256("".join(digests)),
            settings=_settings(self.model),
        )


def open_subject(
    given: TTSModel | str | Path, spare: Path, prompt: SuitePrompt | None = None
) -> Subject:
    """Return a model with its files, and how a worker starts it.

    Args:
        given: The model, or its spec.
        spare: A folder for one that is in memory only.
        prompt: The suite's prompt; models that speak without one ignore it.
    """
    model = _load(given)
    try:
        files, location = model.files(), model.spec
    except ModelError:
        # Compressed in memory: the worker, and the size, need files.
        location = str(model.save(spare / "model"))
        files = _load(location).files()
    if prompt is None or not isinstance(model, Prompted):
        prompt = None
    else:
        model = model.with_prompt(prompt.to_prompt())
    return Subject(
        model=model,
        files=files,
        ref=ModelRef(
            location=location,
            shown=model.spec,
            fingerprint=_fingerprint(files, location, prompt),
            prompt=prompt,
        ),
    )


def check_comparable(reference: TTSModel, candidate: TTSModel) -> None:
    """Refuse models whose audio cannot be compared.

    Raises:
        EvaluationError: Their sample rates differ.
    """
    if reference.sample_rate != candidate.sample_rate:
        raise EvaluationError(
            f"'{reference.spec}' speaks at {reference.sample_rate} Hz and '{candidate.spec}' at "
            f"{candidate.sample_rate} Hz; give a candidate that was made from the reference"
        )


def _fingerprint(files: ModelFiles, location: str, prompt: SuitePrompt | None) -> str:
    """Return the hash of everything that decides how a model speaks, in its files or not.

    A Piper voice with the same weights speaks at another speed if its `.onnx.json` states one.
    """
    found = _sha256("".join(f"{sha256_of(path)}\n" for path in (*files.weights, *files.settings)))
    _, _, options = location.partition("?")  # such as `?nfe_step=16`
    parts = [options, "" if prompt is None else prompt.fingerprint]
    # A model as in its files keeps the name that its finished work has in the store.
    return _sha256("\n".join([found, *parts])) if any(parts) else found


def _settings(model: TTSModel) -> dict[str, str]:
    """Return the inference settings of a system that can be run in several ways."""
    if not isinstance(model, TorchModel):
        return {}
    found = {name: str(value) for name, value in model.describe().items()}
    for upstream in known_upstreams():
        if upstream.family == model.family and upstream.variable in os.environ:
            found["upstream commit"] = find_checkout(upstream).commit or "unknown"
    return found


def _load(given: TTSModel | str | Path) -> TTSModel:
    if not isinstance(given, str | Path):
        return given
    from tts_compress.models import load

    return load(given)


def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()

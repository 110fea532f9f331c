"""A model under evaluation: its files, and where a worker finds it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.artifact import sha256_of
from tts_compress.errors import EvaluationError, ModelError
from tts_compress.evaluation.store import fingerprint
from tts_compress.evaluation.synthesize import Speaker
from tts_compress.models.base import Prompted, TorchModel
from tts_compress.models.checkout import find_checkout, known_upstreams
from tts_compress.report.evaluation import ModelIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tts_compress.evaluation.prompt import SuitePrompt
    from tts_compress.models.base import ModelFiles, TTSModel

__all__ = ["Subject", "check_comparable", "open_subject"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model that has files."""

    model: TTSModel
    files: ModelFiles
    speaker: Speaker

    def identity(self) -> ModelIdentity:
        """Return what the report calls it."""
        manifest = self.model.manifest
        return ModelIdentity(
            spec=self.model.spec,
            family=self.model.family,
            scheme=manifest.scheme if manifest else "fp32",
            sha256=_sha256_of_all(self.files.weights),
            settings=_settings(self.model),
        )


def open_subject(
    given: TTSModel | str | Path, spare: Path, prompt: SuitePrompt | None = None
) -> Subject:
    """Return a model with its file, and where a worker finds it.

    Args:
        given: The model, or its spec.
        spare: A folder for one that is in memory only.
        prompt: What it is to speak by, if it speaks by a prompt.
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
    speaker = Speaker(
        location=location,
        shown=model.spec,
        fingerprint=_fingerprint(files, location, prompt),
        prompt=prompt,
    )
    return Subject(model=model, files=files, speaker=speaker)


def _fingerprint(files: ModelFiles, location: str, prompt: SuitePrompt | None) -> str:
    """Return the hash of everything that decides how a model speaks, in its files or not."""
    _, _, options = location.partition("?")  # such as `?nfe_step=16`
    parts = [options, "" if prompt is None else prompt.fingerprint]
    found = fingerprint(files)
    # What is as in its files keeps the name that its finished work has in the store.
    return sha256("\n".join([found, *parts]).encode()).hexdigest() if any(parts) else found


def _settings(model: TTSModel) -> dict[str, str]:
    """Return what a system that can be run in several ways says of itself."""
    if not isinstance(model, TorchModel):
        return {}
    found = {name: str(value) for name, value in model.describe().items()}
    for upstream in known_upstreams():
        if upstream.family == model.family and upstream.variable in os.environ:
            found["upstream commit"] = find_checkout(upstream).commit or "unknown"
    return found


def _sha256_of_all(paths: Sequence[Path]) -> str:
    """Return the hash of one file, or of the hashes of several."""
    digests = [sha256_of(path) for path in paths]
    return digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()


def _load(given: TTSModel | str | Path) -> TTSModel:
    if not isinstance(given, str | Path):
        return given
    from tts_compress.models import load

    return load(given)


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

"""Made-up models as the stages of an evaluation know them."""

from types import SimpleNamespace
from typing import Any

from tts_compress.evaluation.subject import Subject
from tts_compress.models.base import ModelFiles


def make_subject(location: str, *, shown: str | None = None, fingerprint: str = "") -> Subject:
    """Return a model that is known by its spec and fingerprint alone."""
    model: Any = SimpleNamespace(spec=shown or location)
    files = ModelFiles(weights=())
    return Subject(model=model, files=files, location=location, fingerprint=fingerprint)

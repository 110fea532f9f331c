"""The document of a sensitivity analysis."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tts_compress.artifact import write_text_atomically
from tts_compress.errors import MissingExtraError
from tts_compress.evaluation.metric import Record
from tts_compress.search.damage import Damage

SENSITIVITY_NAME = "sensitivity.json"


class Row(Record):
    """One group of layers alone in one format, all others in FP32."""

    group: str
    component: str
    patterns: tuple[str, ...]
    """Patterns on module names by which a recipe's rules match it."""

    format: str
    parameters: int
    """Weights whose format changes."""

    estimate: Damage
    """The damage that second moments predict; its `distortion` is not predicted."""

    measured: Damage | None
    """None where the estimate is negligible."""

    saved_bytes: int
    saved_ms: float
    """Time that its kernels take less of than in FP32, over all texts, where every layer has this
    format; below zero they take longer. Profiled, one thread: a few per cent are noise."""

    @property
    def damage(self) -> Damage:
        """The measured damage, or else the estimate."""
        return self.measured or self.estimate


class Prediction(Record):
    """Rank correlation of estimated and measured damage, over groups and formats."""

    log_mel: float | None
    """Spearman's rank correlation; None from fewer than three values."""

    durations: float | None


class Sensitivity(Record):
    """Damage, bytes and time of each group of layers in each format."""

    model: str
    sha256: str
    """Hash of the graph."""

    formats: tuple[str, ...]
    texts: tuple[str, ...]
    seed: int
    environment: dict[str, Any]
    reference_bytes: int
    reference_ms: float
    """Time of all kernels in FP32 over all texts."""

    prediction: Prediction
    rows: tuple[Row, ...]
    """The most audible first, within that those that move durations most."""

    def to_json(self) -> str:
        """Return the document."""
        return self.model_dump_json(indent=2) + "\n"


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation of two lists of values; None from fewer than three."""
    if len(first) < 3:
        return None
    import numpy as np
    from scipy.stats import spearmanr

    found = float(spearmanr(first, second).statistic)
    return found if np.isfinite(found) else None


def write_sensitivity(found: Sensitivity, folder: Path) -> Path:
    """Write `sensitivity.json` and `sensitivity.html`; return the page.

    Raises:
        MissingExtraError: The page needs jinja2 and matplotlib; the document is written.
        ArtifactError: The folder cannot be written.
    """
    write_text_atomically(folder / SENSITIVITY_NAME, found.to_json())
    try:
        from tts_compress.search.page import sensitivity_page
    except ImportError as error:
        raise MissingExtraError(error.name or "jinja2", "evaluate") from error
    page = folder / "sensitivity.html"
    write_text_atomically(page, sensitivity_page(found))
    return page

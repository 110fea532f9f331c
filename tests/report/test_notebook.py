"""Displays in a notebook or at a prompt of the public API's objects, and its signatures."""

import base64
import inspect
import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

import tts_compress
from tts_compress.audio import Audio
from tts_compress.evaluation.result import Evaluation
from tts_compress.models import load
from tts_compress.models.base import GraphModel


def test_a_voice_is_shown_by_its_spec_and_scheme(
    tiny: GraphModel, compressed: Callable[[str], Path]
) -> None:
    assert repr(tiny) == f"PiperModel({tiny.spec!r})"
    folder = compressed("int8")
    assert repr(load(folder)) == f"PiperModel({str(folder)!r}, int8)"


def test_audio_plays_in_a_notebook() -> None:
    samples = np.sin(np.arange(8000, dtype=np.float32))
    audio = Audio(samples=samples, sample_rate=16000)
    assert repr(audio) == "Audio(0.50 s, 16000 Hz)"
    found = re.search(r'<audio controls src="data:audio/wav;base64,([^"]+)">', audio._repr_html_())
    assert found is not None
    played, rate = soundfile.read(io.BytesIO(base64.b64decode(found[1])))
    assert rate == 16000
    np.testing.assert_allclose(played, samples, atol=2**-14)


def test_a_manifest_is_short_and_a_table(compressed: Callable[[str], Path]) -> None:
    manifest = load(compressed("int8")).manifest
    assert manifest is not None
    assert len(repr(manifest)) < 300
    assert repr(manifest).startswith("Manifest(int8 of ")
    table = manifest._repr_html_()
    assert all(label in table for label in manifest.counts)


def test_an_evaluation_is_short_and_a_table(evaluation: Evaluation) -> None:
    hostile = evaluation.candidate.model_copy(update={"spec": "<script>"})
    shown = evaluation.model_copy(update={"candidate": hostile})
    assert len(repr(shown)) < 300
    table = evaluation._repr_html_()
    assert "<td>Word error rate</td>" in table
    assert "<script" not in shown._repr_html_()


def test_signatures_name_their_parameters() -> None:
    for name in tts_compress.__all__:
        found = getattr(tts_compress, name)
        if not inspect.isfunction(found):
            continue
        kinds = {p.kind for p in inspect.signature(found).parameters.values()}
        assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}, name
    seed = inspect.signature(GraphModel.synthesize).parameters["seed"]
    assert seed.default == 0


def test_a_voice_speaks_without_a_seed_as_with_zero(tiny: GraphModel) -> None:
    first, second = tiny.synthesize("Hello."), tiny.synthesize("Hello.", seed=0)
    np.testing.assert_array_equal(first.samples, second.samples)


def test_a_report_is_read_by_its_path_as_text(evaluation: Evaluation, tmp_path: Path) -> None:
    evaluation.write(tmp_path)
    assert tts_compress.read_report(str(tmp_path)) == evaluation
    with pytest.raises(tts_compress.TTSCompressError):
        tts_compress.read_report(str(tmp_path / "no"))

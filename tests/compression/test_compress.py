"""Every scheme on a tiny voice: compress, save, load, speak, here and in other programs."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.measures import snr_db
from tests.told import Told
from tts_compress.audio import Audio, read_wav
from tts_compress.compression import compress
from tts_compress.errors import ModelError, RecipeError, SchemeError
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.onnx.quantize.convert import count_operators
from tts_compress.recipes.formats import find_scheme
from tts_compress.recipes.recipe import schemes_of

_TEXTS = ("Yes.", "Good day.", "Hello there.", "Please call Stella. Ask her to bring these.")
_SCHEMES = [name for name in schemes_of("piper") if not find_scheme(name).trained]

_IN_PLAIN_ONNXRUNTIME = """
import sys, numpy, onnxruntime
ids = numpy.array([[1, 0, 20, 0, 61, 0, 24, 0, 10, 0, 2]])
feeds = {"input": ids, "input_lengths": numpy.array([ids.size])}
feeds["scales"] = numpy.array([0.667, 1.0, 0.8], numpy.float32)
for path in sys.argv[1:]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    audio = session.run(None, feeds)[0]
    assert numpy.isfinite(audio).all() and audio.std() > 0.01, (path, audio.std())
assert "tts_compress" not in sys.modules
"""


class _Stages(Told):
    """Progress with a stage around all others."""

    def check(self) -> None:
        """Check that the stage was begun first and ended last, each once."""
        assert self.steps[0] == ("compress", 0, 1)
        assert self.steps[-1] == ("compress", 1, 1)
        assert self.stages.count("compress") == 2


@pytest.fixture(scope="module")
def wanted(tiny: GraphModel) -> dict[str, Audio]:
    """Return what the tiny voice says, by text."""
    return {text: tiny.synthesize(text, seed=0) for text in _TEXTS}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", _SCHEMES)
def test_artifact_speaks_nearly_the_same(
    compressed: Callable[[str], Path], tiny: GraphModel, wanted: dict[str, Audio], scheme: str
) -> None:
    """8 bits in some forty layers in a row leave 15 dB, where no duration flips by a frame.

    Its manifest tells what the file holds.
    """
    found: Any = load(compressed(scheme))
    kept, equal = [], []
    for text, reference in wanted.items():
        audio = found.synthesize(text, seed=0)
        assert np.isfinite(audio.samples).all()
        assert audio.samples.std() > 0.01
        assert audio.durations is not None
        same = audio.durations == reference.durations
        kept += same.tolist()
        if same.all():
            equal.append(snr_db(reference.samples, audio.samples))
    # A network of random weights predicts durations near the limits of rounding.
    assert np.mean(kept) > 0.95
    assert equal
    assert min(equal) > 15
    manifest = found.manifest
    assert manifest is not None
    assert manifest.scheme == manifest.recipe["scheme"] == scheme
    assert manifest.counts == count_operators(found.graph())
    assert manifest.source.spec == tiny.spec
    (original,) = tiny.files().weights
    assert manifest.size_bytes < manifest.source.size_bytes == original.stat().st_size
    assert sum(n for k, n in manifest.counts.items() if "float32" not in k) > 50
    if manifest.calibration is not None:
        assert (manifest.calibration.set, manifest.calibration.utterances) == ("en", 3)
    assert {layer.module.split(".")[0] for layer in manifest.layers} == set(tiny.components())


@pytest.mark.slow
def test_files_run_in_plain_onnxruntime(compressed: Callable[[str], Path]) -> None:
    """These have every operator and every type of weights that the others have."""
    schemes = ("int8", "int8-dynamic", "int4-int8", "fp16", "bf16")
    paths = [str(compressed(scheme) / "tiny.onnx") for scheme in schemes]
    command = [sys.executable, "-c", _IN_PLAIN_ONNXRUNTIME, *paths]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_unmodified_piper_speaks_it(compressed: Callable[[str], Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "piper", "--model", str(compressed("int8") / "tiny.onnx")]
    command += ["--output-file", str(tmp_path / "x.wav"), "--", "Hello there."]
    subprocess.run(command, check=True, capture_output=True)
    assert read_wav(tmp_path / "x.wav").samples.std() > 0.01


@pytest.mark.slow
def test_same_seed_gives_the_same_bytes_in_another_process(
    compressed: Callable[[str], Path],
    tiny: GraphModel,
    quick_recipe: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    program = f"""
from tts_compress.compression import compress
voice, recipe = {tiny.spec!r}, {str(quick_recipe("int8"))!r}
compress(voice, "int8", recipe=recipe).save({str(tmp_path / "again")!r})
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    for path in compressed("int8").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.slow
def test_another_seed_calibrates_on_other_noise_in_a_stage_until_the_end(
    compressed: Callable[[str], Path],
    tiny: GraphModel,
    quick_recipe: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """After the last calibration text a large voice was silent for seven minutes."""
    progress = _Stages()
    other = compress(tiny, "int8", recipe=quick_recipe("int8"), seed=1, progress=progress)
    progress.check()
    assert other.manifest is not None
    assert other.manifest.seed == 1
    saved = other.save(tmp_path / "other") / "tiny.onnx"
    assert saved.read_bytes() != (compressed("int8") / "tiny.onnx").read_bytes()


@pytest.mark.slow
def test_input_is_not_modified_and_nothing_is_written(
    tiny_path: Path, quick_recipe: Callable[[str], Path]
) -> None:
    before, scheme = tiny_path.read_bytes(), "int8-weight-only"
    small = compress(tiny_path, scheme, recipe=quick_recipe(scheme))
    assert tiny_path.read_bytes() == before
    assert sorted(p.name for p in tiny_path.parent.iterdir()) == ["tiny.onnx", "tiny.onnx.json"]
    with pytest.raises(ModelError, match=r"no file yet; call save\(\) first"):
        small.files().weights[0]


def test_calibration_set_for_a_scheme_without_calibration_is_refused(tiny: GraphModel) -> None:
    with pytest.raises((SchemeError, RecipeError), match="needs no calibration set"):
        compress(tiny, "fp16", calibration="en")

"""A Parler-TTS model's codec as a graph, and compressed graphs in the official object."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.measures import snr_db
from tts_compress.compression import compress
from tts_compress.models.parler.model import ParlerModel, load_packages

pytest.importorskip("torch")

from tts_compress.export import OnnxDac, export, record_feeds

_TEXT = "A short text to speak."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_parler: ParlerModel) -> Path:
    """Return the folder of the codec's graph and of its recorded calls."""
    files = export(tiny_parler, tmp_path_factory.mktemp("parler") / "graphs")
    assert [path.name for path in files] == ["audio_encoder.onnx", "export.json"]
    recorded = record_feeds(tiny_parler, [_TEXT, "Another one."], files[0].parent, seed=3)
    assert [path.name for path in recorded] == ["audio_encoder.npz"]
    return files[0].parent


def test_settings_and_calls(folder: Path, tiny_parler: ParlerModel) -> None:
    settings = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    assert settings == {
        "format_version": 1,
        "family": "parler-tts",
        "sample_rate": 44100,
        "graphs": ["audio_encoder.onnx"],
        "codebook_size": 64,
    }
    with np.load(folder / "audio_encoder.npz") as arrays:
        assert arrays.files == ["0/codes", "1/codes"]
        assert arrays["0/codes"].shape[:2] == (1, 9)
        assert arrays["0/codes"].max() < 64
    codec: Any = tiny_parler.root().audio_encoder
    assert "decode" not in codec.__dict__  # nothing is left behind


def test_graph_speaks_in_the_official_object(folder: Path, tiny_parler: ParlerModel) -> None:
    expected = tiny_parler.synthesize(_TEXT, seed=1)
    exchanged = _with_codec(tiny_parler, folder / "audio_encoder.onnx")
    found = exchanged.synthesize(_TEXT, seed=1)
    assert np.abs(found.samples - expected.samples).max() < 1e-4 * np.abs(expected.samples).max()
    assert tiny_parler.synthesize(_TEXT, seed=1).samples.tolist() == expected.samples.tolist()


def test_a_compressed_graph_speaks_in_the_official_object(
    folder: Path, tiny_parler: ParlerModel, tmp_path: Path
) -> None:
    """The codec decides nothing, so that tokens and lengths are equal."""
    path = folder / "audio_encoder.onnx"
    calls = folder / "audio_encoder.npz"
    small = compress(f"onnx:{path}", "int8", calibration=calls).save(tmp_path / "small")
    exchanged = _with_codec(tiny_parler, small / path.name)
    reference, candidate = (m.synthesize(_TEXT, seed=1) for m in (tiny_parler, exchanged))
    assert snr_db(reference.samples, candidate.samples) >= 17  # 3 dB below what was measured
    assert (small / path.name).stat().st_size < path.stat().st_size


@pytest.mark.slow
def test_the_older_codec_in_the_official_object(
    make_parler_dir: Callable[..., Path], tmp_path: Path
) -> None:
    """Its weights carry weight norm, its codes have one dimension more, and it is large."""
    parler, _ = load_packages()
    codec = parler.DACConfig(num_codebooks=9, codebook_size=64, latent_dim=16)
    directory = make_parler_dir("exported-wrapped", codec=codec)
    model = ParlerModel.open(str(directory), f"parler-tts:{directory}")
    export(model, tmp_path / "graphs")
    files = record_feeds(model, [_TEXT], tmp_path)
    with np.load(files[0]) as arrays:
        assert arrays["0/codes"].ndim == 3
    expected = model.synthesize(_TEXT, seed=1).samples
    exchanged = _with_codec(model, tmp_path / "graphs" / "audio_encoder.onnx")
    found = exchanged.synthesize(_TEXT, seed=1).samples
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()
    shutil.rmtree(directory)


def _with_codec(model: ParlerModel, path: Path) -> ParlerModel:
    """Return the model with a graph as its codec; the given one keeps its own."""
    from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

    root: Any = copy_sharing_tensors(model.root())
    root.audio_encoder = OnnxDac(path, like=root.audio_encoder, threads=1)
    return model.with_root(root, None)

"""Vocos as a graph: the official audio, in the official object, in every INT8 scheme."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.measures import snr_db
from tts_compress.compression import compress
from tts_compress.errors import ModelError

torch = pytest.importorskip("torch")

from tts_compress.export import OnnxVocos, export_vocos, feeds_writer  # noqa: E402

_BOUNDS_DB = {"int8-weight-only": 21, "int8-dynamic": 18, "int8-static": 17, "int8": 18}
"""3 dB below what was measured; seeded phases are as sensitive as can be."""


def _mel(frames: int, batch: int = 1) -> Any:
    return torch.randn(batch, 100, frames, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("padding", ["center", "same"])
@pytest.mark.parametrize(("n_fft", "hop"), [(1024, 256), (64, 20)])
def test_audio_is_the_official_one(
    make_vocos: Callable[..., Any], tmp_path: Path, n_fft: int, hop: int, padding: str
) -> None:
    vocos = make_vocos(n_fft, hop, padding)
    before = {name: value.clone() for name, value in vocos.state_dict().items()}
    graph = OnnxVocos(export_vocos(vocos, tmp_path / "vocos.onnx"), threads=1)
    for mel in (_mel(8), _mel(57), _mel(30, batch=3)):
        expected = vocos.decode(mel)
        audio = graph.decode(mel)
        assert audio.shape == expected.shape
        assert torch.allclose(audio, expected, atol=1e-5 * float(expected.abs().max()))
    assert all(torch.equal(vocos.state_dict()[name], value) for name, value in before.items())


@pytest.fixture(scope="module")
def exported(
    tmp_path_factory: pytest.TempPathFactory, make_vocos: Callable[..., Any]
) -> tuple[Any, Path]:
    """Return a vocoder and the folder of its graph and calls."""
    vocos, folder = make_vocos(), tmp_path_factory.mktemp("vocos")
    export_vocos(vocos, folder / "vocos.onnx")
    with feeds_writer(folder / "vocos.npz") as add:
        for frames in (40, 50, 60):
            add({"mel": _mel(frames).numpy()})
    return vocos, folder


@pytest.mark.filterwarnings("ignore:.* of the weights stay in FP32")  # a Fourier transform
@pytest.mark.parametrize("scheme", _BOUNDS_DB)
def test_every_scheme_runs_and_is_close(
    exported: tuple[Any, Path], tmp_path: Path, scheme: str
) -> None:
    vocos, folder = exported
    calibration = folder / "vocos.npz" if scheme in {"int8-static", "int8"} else None
    small = compress(
        f"onnx:{folder / 'vocos.onnx'}",
        scheme,
        calibration=calibration,
        quality="fast" if scheme == "int8" else None,
    )
    path = small.save(tmp_path / "small") / "vocos.onnx"
    mel = _mel(71)
    distance = snr_db(vocos.decode(mel).numpy(), OnnxVocos(path, threads=1).decode(mel).numpy())
    assert distance >= _BOUNDS_DB[scheme]
    # The transform's constants, which are not rounded, are a half of so small a vocoder.
    assert path.stat().st_size < 0.7 * (folder / "vocos.onnx").stat().st_size
    assert small.manifest is not None
    assert small.manifest.counts["MatMul float32/none"] == 2  # the inverse transform


def test_calls_are_numbered_and_nothing_is_left(exported: tuple[Any, Path], tmp_path: Path) -> None:
    _, folder = exported
    with np.load(folder / "vocos.npz") as arrays:
        assert arrays.files == ["0/mel", "1/mel", "2/mel"]
        assert np.array_equal(arrays["1/mel"], _mel(50).numpy())
    with suppress(KeyError), feeds_writer(tmp_path / "broken.npz") as add:
        add({"mel": np.zeros(3)})
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_other_vocoders_are_refused(make_vocos: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Linear is no Vocos with an ISTFT head"):
        export_vocos(torch.nn.Linear(1, 1), tmp_path / "none.onnx")
    told = make_vocos()
    told.backbone.adanorm = True
    with pytest.raises(ModelError, match="told a bandwidth"):
        export_vocos(told, tmp_path / "none.onnx")
    short = make_vocos()
    short.head.istft.win_length = 800
    with pytest.raises(ModelError, match="window of 800 samples"):
        export_vocos(short, tmp_path / "none.onnx")
    assert not list(tmp_path.iterdir())

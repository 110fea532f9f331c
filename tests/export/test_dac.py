"""Codec decoders as graphs: three official forms, in every INT8 scheme."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.measures import snr_db
from tts_compress.compression import compress
from tts_compress.errors import ModelError

torch = pytest.importorskip("torch")

from tts_compress.export import OnnxDac, export_dac, feeds_writer  # noqa: E402

_BOUNDS_DB = {"int8-weight-only": 33, "int8-dynamic": 29, "int8-static": 21, "int8": 27}
"""3 dB below what was measured."""


def _codes(frames: int, batch: int = 1) -> Any:
    generator = torch.Generator().manual_seed(frames)
    return torch.randint(64, (batch, 9, frames), generator=generator)


def _decode(codec: Any, kind: str, codes: Any) -> Any:
    with torch.no_grad():
        if kind == "wrapper":
            return codec.decode(codes[None], [None]).audio_values
        return codec.decode(audio_codes=codes).audio_values


@pytest.mark.parametrize("kind", ["hub", "normed", "wrapper"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_audio_is_the_official_one(
    make_dac: Callable[[str], Any], tmp_path: Path, kind: str
) -> None:
    codec = make_dac(kind)
    names = list(codec.state_dict())
    graph = OnnxDac(export_dac(codec, tmp_path / "dac.onnx"), like=codec, threads=1)
    assert graph.config is codec.config
    for frames in (5, 31):
        codes = _codes(frames)
        expected = _decode(codec, kind, codes)
        given = codes[None] if kind == "wrapper" else codes
        audio = graph.decode(given, audio_scales=[None]).audio_values
        assert audio.shape == expected.shape
        assert torch.allclose(audio, expected, atol=1e-5 * float(expected.abs().max()))
    assert list(codec.state_dict()) == names  # with weight norm, if it had it
    assert torch.equal(_decode(codec, kind, codes), expected)


def test_several_at_once(make_dac: Callable[[str], Any], tmp_path: Path) -> None:
    codec = make_dac("hub")
    graph = OnnxDac(export_dac(codec, tmp_path / "dac.onnx"), threads=1)
    expected = _decode(codec, "hub", _codes(9, batch=3))
    assert torch.allclose(graph.decode(_codes(9, batch=3)).audio_values, expected, atol=1e-5)
    with pytest.raises(ModelError, match="cannot be run"):
        graph.decode(torch.full((1, 9, 5), 64))  # one more than there are


@pytest.mark.parametrize("scheme", _BOUNDS_DB)
def test_every_scheme_runs_and_is_close(
    make_dac: Callable[[str], Any], tmp_path: Path, scheme: str
) -> None:
    codec = make_dac("hub")
    path = export_dac(codec, tmp_path / "dac.onnx")
    calibration = None
    if scheme in {"int8-static", "int8"}:
        calibration = tmp_path / "dac.npz"
        with feeds_writer(calibration) as add:
            for frames in (40, 50, 60):
                add({"codes": _codes(frames).numpy()})
    small = compress(f"onnx:{path}", scheme, calibration=calibration).save(tmp_path / "small")
    expected = _decode(codec, "hub", _codes(71))
    audio = OnnxDac(small / "dac.onnx", threads=1).decode(_codes(71)).audio_values
    assert snr_db(expected.numpy(), audio.numpy()) >= _BOUNDS_DB[scheme]
    assert (small / "dac.onnx").stat().st_size < 0.5 * path.stat().st_size


def test_other_modules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Linear has no quantizer and decoder"):
        export_dac(torch.nn.Linear(1, 1), tmp_path / "none.onnx")

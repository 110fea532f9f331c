"""A whole F5-TTS model as graphs, and compressed graphs in the official object."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.measures import snr_db
from tts_compress.compression import compress
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.models.f5.model import F5Model

pytest.importorskip("torch")

from tts_compress.export import OnnxModule, OnnxVocos, export, feeds_writer, record_feeds

_TEXT = "A short text to speak."
_GRAPHS = ("preprocess", "transformer", "decode", "vocoder")
_BOUNDS_DB = {
    "preprocess": {"int8-weight-only": 67, "int8-dynamic": 61, "int8-static": 61, "int8": 61},
    "transformer": {"int8-weight-only": 44, "int8-dynamic": 40, "int8-static": 42, "int8": 38},
    "decode": {"int8-weight-only": 35, "int8-dynamic": 30, "int8-static": 26, "int8": 24},
}
"""3 dB below what was measured; the vocoder alone has tests in tests/export."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_f5: F5Model) -> Path:
    """Return the folder of a model's graphs."""
    files = export(tiny_f5, tmp_path_factory.mktemp("f5") / "graphs")
    assert [path.name for path in files] == [*(f"{g}.onnx" for g in _GRAPHS), "export.json"]
    return files[0].parent


@pytest.fixture(scope="module")
def feeds(tmp_path_factory: pytest.TempPathFactory, tiny_f5: F5Model) -> Path:
    """Return the folder of recorded calls."""
    target = tmp_path_factory.mktemp("feeds")
    files = record_feeds(tiny_f5, [_TEXT, "Another one, a little longer."], target, seed=3)
    assert [path.name for path in files] == ["transformer.npz", "decode.npz", "vocoder.npz"]
    return target


def test_settings_say_how_to_run_the_graphs(folder: Path) -> None:
    settings = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    assert settings == {
        "format_version": 1,
        "family": "f5-tts",
        "sample_rate": 24000,
        "graphs": [f"{graph}.onnx" for graph in _GRAPHS],
        "nfe_step": 4,
        "cfg_strength": 2.0,
        "sway_sampling_coef": -1.0,
        "hop_length": 256,
        "bands": 100,
    }


def test_vocoder_graph_speaks_in_the_official_object(folder: Path, tiny_f5: F5Model) -> None:
    expected = tiny_f5.synthesize(_TEXT, seed=1)
    root: Any = tiny_f5.root()
    official = root.vocoder
    exchanged = _with_vocoder(tiny_f5, OnnxVocos(folder / "vocoder.onnx", threads=1))
    found = exchanged.synthesize(_TEXT, seed=1)
    assert np.abs(found.samples - expected.samples).max() < 1e-5 * np.abs(expected.samples).max()
    assert tiny_f5.root().vocoder is official


def test_recorded_calls_are_those_of_the_graphs(
    folder: Path, feeds: Path, tiny_f5: F5Model
) -> None:
    """The transformer's graph takes one recorded step to the next."""
    step = OnnxModule(folder / "transformer.onnx", threads=1)
    with np.load(feeds / "transformer.npz") as arrays:
        assert [int(arrays[f"{call}/time_step"][0]) for call in range(8)] == [0, 1, 2, 3] * 2
        for call in (0, 2, 5):
            mel, number = step(**_call(arrays, call))
            expected = arrays[f"{call + 1}/noise"]
            assert np.abs(mel.numpy() - expected).max() < 1e-5 * np.abs(expected).max()
            assert int(number) == arrays[f"{call + 1}/time_step"][0]
        last, _ = step(**_call(arrays, 3))
    with np.load(feeds / "vocoder.npz") as mels, np.load(feeds / "decode.npz") as cut:
        spoken = mels["0/mel"]
        assert np.abs(last[0, -spoken.shape[2] :].numpy().T - spoken[0]).max() < 1e-4
        assert np.array_equal(cut["0/denoised"].transpose(0, 2, 1), spoken)
        vocoder = OnnxVocos(folder / "vocoder.onnx", threads=1)
        import torch

        whole = vocoder.decode(torch.from_numpy(spoken))
        sixteen = OnnxModule(folder / "decode.onnx", threads=1)(**_call(cut, 0))[0].float() / 32767
        assert torch.allclose(sixteen, whole.clamp(-1, 1), atol=1e-4)
    assert not tiny_f5.root().transformer.__dict__.get("forward")  # nothing is left behind


@pytest.mark.filterwarnings("ignore:.* of the weights stay in FP32")  # a Fourier transform
@pytest.mark.parametrize("graph", _BOUNDS_DB)
@pytest.mark.parametrize("scheme", _BOUNDS_DB["decode"])
def test_every_scheme_runs_and_is_close(
    folder: Path, feeds: Path, tmp_path: Path, graph: str, scheme: str
) -> None:
    source = folder / f"{graph}.onnx"
    recorded = feeds / f"{graph}.npz"
    if graph == "preprocess":  # its calls are not recorded
        recorded = tmp_path / "preprocess.npz"
        with feeds_writer(recorded) as add:
            for seed in range(3):
                add({name: value.numpy() for name, value in _made_up_call(seed).items()})
    calibration = recorded if scheme in {"int8-static", "int8"} else None
    small = compress(f"onnx:{source}", scheme, calibration=calibration).save(tmp_path / "small")
    with np.load(recorded) as arrays:
        call = _call(arrays, 1)
    original, compressed = (
        OnnxModule(path, threads=1)(**call) for path in (source, small / source.name)
    )
    if isinstance(original, tuple):  # of several outputs, the one that weights make
        position = {"preprocess": 3, "transformer": 0}[graph]
        original, compressed = original[position], compressed[position]
    distance = snr_db(original.numpy(), compressed.numpy())
    assert distance >= _BOUNDS_DB[graph][scheme]
    assert (small / source.name).stat().st_size < source.stat().st_size


@pytest.mark.filterwarnings("ignore:.* of the weights stay in FP32")  # a Fourier transform
def test_compressed_vocoder_speaks_in_the_official_object(
    folder: Path, tiny_f5: F5Model, tmp_path: Path
) -> None:
    path = folder / "vocoder.onnx"
    small = compress(f"onnx:{path}", "int8-dynamic").save(tmp_path / "small")
    exchanged = _with_vocoder(tiny_f5, OnnxVocos(small / "vocoder.onnx", threads=1))
    audio = exchanged.api.infer(
        str(tiny_f5.prompt.audio),
        tiny_f5.prompt.text,
        _TEXT,
        nfe_step=2,
        show_info=lambda *_: None,
        progress=None,
    )[0]
    assert np.isfinite(audio).all()
    assert audio.std() > 0


def test_refusals(folder: Path, tiny_f5: F5Model, tmp_path: Path) -> None:
    from torch import nn

    other = _with_vocoder(tiny_f5, nn.Identity())
    with pytest.raises(ModelError, match="Identity is no Vocos with an ISTFT head"):
        export(other, tmp_path / "none")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ArtifactError, match="exists"):
        export(tiny_f5, folder)
    with pytest.raises(ArtifactError, match="no folder"):
        record_feeds(tiny_f5, [_TEXT], tmp_path / "none")


@dataclass
class Other:
    """A model that cannot be exported."""

    family: str
    manifest: Any
    spec: str = "other"


def test_other_families_and_compressed_models_are_refused(tmp_path: Path) -> None:
    other: Any = Other("piper", None)
    with pytest.raises(ModelError, match="'piper' cannot be exported; those that can are f5-tts"):
        export(other, tmp_path / "none")
    compressed: Any = Other("f5-tts", SimpleNamespace(scheme="int8"))
    with pytest.raises(ModelError, match=r"'other' is compressed \(int8\); export the original"):
        record_feeds(compressed, [_TEXT], tmp_path)
    assert not list(tmp_path.iterdir())


def _with_vocoder(model: F5Model, vocoder: Any) -> F5Model:
    from torch import nn

    root: Any = model.root()
    return model.with_root(
        nn.ModuleDict({"transformer": root.transformer, "vocoder": vocoder}), None
    )


def _call(arrays: Any, number: int) -> dict[str, Any]:
    import torch

    prefix = f"{number}/"
    names = [name for name in arrays.files if name.startswith(prefix)]
    return {name.removeprefix(prefix): torch.from_numpy(arrays[name]) for name in names}


def _made_up_call(seed: int) -> dict[str, Any]:
    """Return a call of the first graph."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {
        "audio": (3000 * torch.randn(1, 1, 30_000, generator=generator)).to(torch.int16),
        "text_ids": torch.randint(90, (1, 20 + seed), generator=generator, dtype=torch.int32),
        "max_duration": torch.tensor([200]),
    }

"""A Piper voice speaks reproducibly, by our code and by piper's own."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tts_compress.errors import ArtifactError, MissingExtraError, ModelError, TTSCompressError
from tts_compress.models import load
from tts_compress.models.base import GraphModel

_TEXT = "Please call Stella. Ask her to bring these things."


def test_speech_is_audible_and_as_long_as_its_durations(tiny: GraphModel) -> None:
    audio = tiny.synthesize(_TEXT, seed=0)
    assert audio.samples.dtype == np.float32
    assert audio.durations is not None
    assert len(audio.samples) == 256 * audio.durations.sum()
    assert np.isfinite(audio.samples).all()
    assert audio.samples.std() > 0.01


def test_no_seed_equals_noise_scales_of_zero(tiny: GraphModel, tiny_path: Path) -> None:
    """Against the untouched file in plain onnxruntime, which multiplies its noise by them."""
    quiet = tiny.synthesize("Hello there.", seed=None).samples
    session = onnxruntime.InferenceSession(
        tiny_path, onnxruntime.SessionOptions(), providers=["CPUExecutionProvider"]
    )
    feeds = next(iter(tiny.calibration_calls(["Hello there."], seed=0)))
    own = {name: feeds[name] for name in ("input", "input_lengths")}
    (plain,) = session.run(None, own | {"scales": np.array([0, 1, 0], np.float32)})
    np.testing.assert_allclose(quiet, plain.reshape(-1), atol=1e-6)


def test_negative_seed_is_our_own_error(tiny: GraphModel) -> None:
    with pytest.raises(TTSCompressError, match="seed -1"):
        tiny.synthesize("Hello.", seed=-1)


def test_components_cover_the_network(tiny: GraphModel) -> None:
    found = tiny.components()
    assert list(found) == ["enc_p", "dp", "flow", "dec"]
    assert found["dec"].operators["ConvTranspose"] == 3
    assert found["enc_p"].operators["Gather"] >= 1
    for component in found.values():
        assert component.parameters > 0
        assert component.size_bytes >= 4 * component.parameters
    assert tiny.describe()["speakers"] == 1


def test_graph_is_a_copy(tiny: GraphModel) -> None:
    tiny.graph().graph.node[0].op_type = "Nonsense"
    assert tiny.graph().graph.node[0].op_type != "Nonsense"


def test_saved_voice_is_the_same_file(tiny: GraphModel, tiny_path: Path, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "out")
    assert sorted(p.name for p in folder.iterdir()) == ["tiny.onnx", "tiny.onnx.json"]
    assert (folder / "tiny.onnx").read_bytes() == tiny_path.read_bytes()
    with pytest.raises(ArtifactError, match="--force"):
        tiny.save(folder)


@pytest.mark.slow
def test_voice_with_alignment_output_speaks(tiny_path: Path, tmp_path: Path) -> None:
    """Piper's own patch for alignments makes the durations an output of the file already."""
    path = tmp_path / "tiny.onnx"
    model = onnx.load(tiny_path)
    ceil = next(node for node in model.graph.node if node.op_type == "Ceil")
    model.graph.output.append(helper.make_empty_tensor_value_info(ceil.output[0]))
    onnx.save(model, path)
    shutil.copy(tiny_path.with_name("tiny.onnx.json"), tmp_path)
    found, wanted = load(path).synthesize(_TEXT, seed=0), load(tiny_path).synthesize(_TEXT, seed=0)
    np.testing.assert_array_equal(found.durations, wanted.durations)
    np.testing.assert_array_equal(found.samples, wanted.samples)


def test_graph_that_fails_while_running_is_a_model_error(tiny_path: Path, tmp_path: Path) -> None:
    """Symbols beyond the embedding are found only when they are spoken."""
    shutil.copy(tiny_path, tmp_path)
    config = json.loads(tiny_path.with_name("tiny.onnx.json").read_text(encoding="utf-8"))
    config["phoneme_id_map"] = {key: [9999] for key in config["phoneme_id_map"]}
    (tmp_path / "tiny.onnx.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=r"tiny\.onnx"):
        load(tmp_path / "tiny.onnx").synthesize("Hello.", seed=0)


@pytest.mark.parametrize(
    ("phonemes", "locale", "module", "extra"),
    [
        ("pinyin", "zh_CN", "unicode_rbnf", "zh"),
        ("japanese", "ja_JP", "pyopenjtalk", "ja"),
        ("thai", "th_TH", "tltk", "th"),
    ],
)
def test_a_phonemizer_of_its_own_that_is_missing_names_the_extra(
    tiny_path: Path,
    voice_config: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    phonemes: str,
    locale: str,
    module: str,
    extra: str,
) -> None:
    """Piper needs more packages for some languages."""
    path = tmp_path / "voice.onnx"
    path.write_bytes(tiny_path.read_bytes())
    config = voice_config | {"phoneme_type": phonemes, "language": {"code": locale}}
    path.with_name("voice.onnx.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'tts-compress\[{extra}\]'"):
        load(path).synthesize("text", seed=0)

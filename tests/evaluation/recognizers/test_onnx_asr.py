"""onnx-asr, with a tiny CTC network of random weights in NeMo's form."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tts_compress.errors import EvaluationError, MissingExtraError
from tts_compress.evaluation.recognizers import open_recognizer

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.audio import Audio

_TOKENS = ["▁ja", "▁nein", "▁viel", "st", "en", "ü", "<blk>"]
_MELS = 80


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model: means of eight frames, a random projection, and its vocabulary."""
    pytest.importorskip("onnx_asr.loader")
    weight = np.random.default_rng(0).normal(size=(_MELS, len(_TOKENS))).astype(np.float32)
    nodes = [
        helper.make_node(
            "AveragePool", ["audio_signal"], ["means"], kernel_shape=[8], strides=[8], ceil_mode=1
        ),
        helper.make_node("Transpose", ["means"], ["frames"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["frames", "weight"], ["logits"]),
        helper.make_node("LogSoftmax", ["logits"], ["logprobs"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "ctc",
        [
            helper.make_tensor_value_info("audio_signal", TensorProto.FLOAT, ["b", _MELS, "t"]),
            helper.make_tensor_value_info("length", TensorProto.INT64, ["b"]),
        ],
        [helper.make_tensor_value_info("logprobs", TensorProto.FLOAT, ["b", "f", len(_TOKENS)])],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    root = tmp_path_factory.mktemp("nemo")
    onnx.save(model, root / "model.onnx")
    vocabulary = "\n".join(f"{token} {index}" for index, token in enumerate(_TOKENS))
    (root / "vocab.txt").write_text(vocabulary, encoding="utf-8")
    settings = {"model_type": "nemo-conformer-ctc", "features_size": _MELS}
    (root / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return root


def test_transcripts_are_of_the_audio_and_repeat(folder: Path, sounds: list[Audio]) -> None:
    ears = open_recognizer(f"onnx-asr:{folder}", "de")
    first = [ears.transcribe(audio) for audio in sounds]
    assert len({*first}) == 2
    assert {*"".join(first)} <= {*"janeinvielstenü "}
    again = open_recognizer(f"onnx-asr:{folder}", "de")
    assert first[::-1] == [again.transcribe(audio) for audio in sounds[::-1]]
    assert again.description == ears.description
    assert f"model {folder.name} (files " in ears.description
    assert "onnx-asr 0." in ears.description


def test_broken_audio_is_a_finding_not_a_crash(folder: Path, broken: Audio) -> None:
    assert isinstance(open_recognizer(f"onnx-asr:{folder}", "de").transcribe(broken), str)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", "'onnx-asr' needs a model"),
        ("/no/such/folder", "no folder '/no/such/folder' with a model"),
        ("gigantic", "cannot open the model 'gigantic' of 'onnx-asr': Model 'gigantic' not supp"),
        ("nemo-parakeet-tdt-0.6b-v3", "cannot open the model .* of 'onnx-asr': .*disabled"),
        ("nemo-parakeet-tdt-0.6b-v2", "does not know the suite's language 'de' .it knows en"),
        ("t-tech/t-one", "does not know the suite's language 'de' .it knows ru"),
    ],
)
def test_what_it_does_not_have_is_one_line(
    monkeypatch: pytest.MonkeyPatch, model: str, message: str
) -> None:
    pytest.importorskip("onnx_asr.loader")
    hub = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    with pytest.raises(EvaluationError, match=message) as caught:
        open_recognizer(f"onnx-asr:{model}", "de")
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx_asr.loader", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tts-compress\[onnx-asr\]'"):
        open_recognizer("onnx-asr:model", "de")

"""Masks of -inf, as torch exports masked attention, through every scheme and back."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.measures import snr_db
from tts_compress.compression import compress
from tts_compress.errors import ModelError
from tts_compress.models import open_model
from tts_compress.models.base import OnnxGraph
from tts_compress.onnx.quantize.prepare import optimize
from tts_compress.onnx.session import open_session, run_session
from tts_compress.recipes.formats import find_scheme
from tts_compress.recipes.recipe import find_recipe, schemes_of

_SCHEMES = [name for name in schemes_of("onnx") if not find_scheme(name).trained]


def _mel(frames: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(1, 12, frames)).astype(np.float32)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return attention between convolutions, with a mask as a constant and one as a buffer."""
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):  # type: ignore[name-defined, misc]  # torch is optional
        def __init__(self) -> None:
            super().__init__()
            self.pre = torch.nn.Conv1d(12, 32, 3, padding=1)
            self.rows = torch.nn.Linear(32, 96)
            self.post = torch.nn.Conv1d(32, 8, 3, padding=1)
            self.register_buffer("mask", torch.full((80, 80), -torch.inf).triu(1))

        def forward(self, mel: Any) -> Any:
            x = torch.nn.functional.leaky_relu(self.pre(mel), 0.1)
            queries, keys, values = self.rows(x.transpose(1, 2)).chunk(3, dim=2)
            places = torch.arange(mel.shape[2])
            scores = queries @ keys.transpose(1, 2) / 6
            scores = scores.masked_fill(places[None] + 9 < places[:, None], -torch.inf)
            shares = (scores + self.mask[: mel.shape[2], : mel.shape[2]]).softmax(2)
            return torch.tanh(self.post(x + (shares @ values).transpose(1, 2)))

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("masked") / "masked.onnx"
    torch.onnx.export(
        Attention().eval(),
        (torch.zeros(1, 12, 20),),
        str(path),
        input_names=["mel"],
        output_names=["y"],
        dynamic_axes={"mel": {2: "T"}, "y": {2: "N"}},
        dynamo=False,
    )
    return path


def _infinite(nodes: Any, operator: str) -> bool:
    return any(
        node.op_type == operator
        and any(np.isinf(onnx.numpy_helper.to_array(entry.t)).any() for entry in node.attribute)
        for node in nodes
    )


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("scheme", _SCHEMES)
def test_every_scheme_takes_masks_of_infinities_and_is_opened_again(
    exported: Path, tmp_path: Path, scheme: str
) -> None:
    """Artifacts of such graphs were written, and then refused by every command.

    A `Constant` of the original is an initializer of the artifact; the original's are those where
    other exporters, or an optimizer, wrote it.
    """
    model = onnx.load(exported)
    assert _infinite(model.graph.node, "Constant")
    simplified = tmp_path / "simplified.onnx"
    onnx.save(optimize(model, fuse=False), simplified)
    feeds = tmp_path / "feeds.npz"
    np.savez(feeds, **{f"{i}/mel": _mel(20 + 7 * i, i) for i in range(3)})
    observes = find_recipe("onnx", scheme).calibration is not None
    mel = {"mel": _mel(33, 9)}
    (expected,) = run_session(open_session(model, "it"), mel, "it")
    for path in (exported, simplified):
        small = compress(f"onnx:{path}", scheme, calibration=feeds if observes else None)
        folder = small.save(tmp_path / path.stem)
        opened = open_model(folder)
        assert isinstance(opened, OnnxGraph)
        (given,) = run_session(open_session(opened.graph(), "it"), mel, "it")
        assert snr_db(expected, given) > 20


def test_layer_that_multiplies_infinities_is_refused(exported: Path, tmp_path: Path) -> None:
    """The error says what is accepted."""
    model = onnx.load(exported)
    weight = next(t for t in model.graph.initializer if t.name == "pre.weight")
    values = onnx.numpy_helper.to_array(weight).copy()
    values[0, 0, 0] = np.inf
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    onnx.save(model, tmp_path / "broken.onnx")
    with pytest.raises(ModelError, match=r"'pre\.weight' has values that are not.*in masks"):
        compress(f"onnx:{tmp_path / 'broken.onnx'}", "int8-weight-only")

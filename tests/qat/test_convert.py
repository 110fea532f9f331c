"""A student trained as if compressed is compressed to the same codes and the same sound."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.measures import snr_db
from tts_compress import find_recipe
from tts_compress.errors import QuantizationError
from tts_compress.qat.fake_quantize import FakeQuantize, disable_observer
from tts_compress.qat.prepare import FakeQuantizedLayer, PreparedModule, convert_qat, prepare_qat
from tts_compress.torch.layers.base import CompressedLayer, layer_state
from tts_compress.torch.layers.checkpoint import load_module, save_module

SCHEMES = ["int8-static", "int8-dynamic", "int8-weight-only", "int4-weight-only"]


def _mel(seed: int = 0, frames: int = 20) -> Tensor:
    return torch.randn(2, 64, frames, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def vocoder(make_generator: Callable[..., nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that makes the teacher."""
    return lambda: make_generator(bands=64, channels=64, rates=(4,))


@pytest.fixture(scope="module")
def train(vocoder: Callable[[], nn.Module]) -> Callable[..., PreparedModule]:
    """Return a function that returns a student after some steps towards its teacher."""

    @cache
    def train(scheme: str, *, learned: bool = False) -> PreparedModule:
        module = vocoder()
        student = prepare_qat(module, find_recipe("module", scheme), learned_ranges=learned)
        optimizer = torch.optim.Adam(student.module.parameters(), lr=3e-5)
        for step in range(3):
            with torch.no_grad():
                meant = module(_mel(step))
            optimizer.zero_grad()
            (student.module(_mel(step)) - meant).square().mean().backward()
            optimizer.step()
        disable_observer(student.module)
        return student

    return train


@pytest.mark.parametrize(
    ("scheme", "learned"), [*((scheme, False) for scheme in SCHEMES), ("int8-static", True)]
)
def test_a_vocoder_in_integers_agrees_with_what_was_trained(
    train: Callable[..., PreparedModule], scheme: str, learned: bool
) -> None:
    student = train(scheme, learned=learned)
    done = convert_qat(student)
    with torch.inference_mode():
        assert snr_db(student.module(_mel(9)).numpy(), done.root(_mel(9)).numpy()) >= 40
        assert done.root(_mel(9, frames=31)).shape == (2, 1, 31 * 4)
    assert not any(isinstance(m, FakeQuantize | FakeQuantizedLayer) for m in done.root.modules())
    records = {record.module: record for record in done.layers}
    assert records["ups.0"].weights == ("int4" if "int4" in scheme else "int8")
    assert sum(done.counts.values()) == len(records) == 1 + 1 + 3 * 6 + 1
    _check_codes(student, done.root)


def _check_codes(student: PreparedModule, root: nn.Module) -> None:
    """Compare what follows the peak with what quantizing the trained weights gives."""
    checked = 0
    for name, layer in student.module.named_modules():
        if not isinstance(layer, FakeQuantizedLayer):
            continue
        limits = getattr(layer.activation_fake_quant, "limits", lambda: None)()
        expected = layer_state(
            _plain(layer),
            layer.decision.weights,
            layer.decision.activations,
            group_size=layer.decision.group_size,
            limits=limits,
        )
        made = root.get_submodule(name)
        assert isinstance(made, CompressedLayer)
        state = made.state()
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[key], expected[key]) for key in state), name
        checked += 1
    assert checked == len([d for d in student.decisions if d.weights in {"int8", "int4"}])


def _plain(layer: FakeQuantizedLayer) -> nn.Module:
    """Return the layer in FP32 that has the trained weights."""
    shape = layer.geometry
    kind = {"Conv1d": nn.Conv1d, "ConvTranspose1d": nn.ConvTranspose1d}[shape.operator]
    up = shape.operator == "ConvTranspose1d"
    inputs, outputs = shape.shape[:2] if up else shape.shape[1::-1]
    taps, window = shape.shape[2], (shape.stride, shape.padding)
    plain: nn.Module = kind(inputs, outputs, taps, *window)
    plain.weight, plain.bias = layer.weight, layer.bias  # type: ignore[assignment]
    return plain


def test_nothing_is_shared_with_what_trains_on() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(64, 64, 3), nn.GroupNorm(4, 64), nn.Conv1d(64, 16, 3))
    student = prepare_qat(module, find_recipe("module", "int8-static"))
    student.module(_mel())
    done = convert_qat(student)
    with torch.no_grad():
        expected, before = done.root(_mel()), student.module(_mel())
        assert all(part.observer_enabled for part in _quantizers(student.module)), (
            "it observes still"
        )
        for tensor in student.module.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(1.5)
        assert torch.equal(done.root(_mel()), expected)
        assert not torch.equal(student.module(_mel()), before)
    assert not any(p.requires_grad for p in done.root.parameters())


def _quantizers(root: nn.Module) -> list[FakeQuantize]:
    return [module for module in root.modules() if isinstance(module, FakeQuantize)]


@pytest.mark.parametrize("loud", [1.0, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("kind", ["linear", "convolution", "one tap"])
def test_faint_inputs_round_as_the_kernels_round_them(kind: str, loud: float) -> None:
    """Those of linear layers have a least step, which leaves few codes to faint inputs."""
    torch.manual_seed(0)
    taps = 1 if kind == "one tap" else 3
    layer = nn.Linear(20, 8) if kind == "linear" else nn.Conv1d(64, 16, taps)
    student = prepare_qat(layer, find_recipe("module", "int8-dynamic"))
    done = convert_qat(student)
    with torch.inference_mode():
        x = _mel() * loud
        assert layer.bias is not None
        bias = layer.bias if kind == "linear" else layer.bias[:, None]
        assert snr_db((student.module(x) - bias).numpy(), (done.root(x) - bias).numpy()) >= 40


def test_it_is_saved_and_loaded(
    train: Callable[..., PreparedModule], vocoder: Callable[[], nn.Module], tmp_path: Path
) -> None:
    done = convert_qat(train("int8-static", learned=True))
    save_module(done.root, tmp_path / "vocoder.safetensors")
    again = load_module(vocoder(), tmp_path / "vocoder.safetensors")
    with torch.inference_mode():
        assert torch.equal(again(_mel()), done.root(_mel()))


def test_weights_that_only_a_file_rounds_are_rounded_at_last() -> None:
    torch.manual_seed(0)
    shipped = find_recipe("module", "int8-dynamic")
    first = shipped.component[0].model_copy(update={"match": "1"})
    rest = first.model_copy(update={"match": "*", "weights": "float16", "activations": "none"})
    recipe = shipped.model_copy(update={"component": (first, rest)})
    student = prepare_qat(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), recipe)
    done = convert_qat(student)
    kept = student.module.get_parameter("0.weight")
    assert torch.equal(done.root.get_parameter("0.weight"), kept.half().float())
    assert not torch.equal(kept, kept.half().float())
    assert done.counts == {"Linear float16/none": 1, "Linear int8/dynamic": 1}


def test_ranges_that_were_never_observed_are_an_error() -> None:
    student = prepare_qat(nn.Conv1d(64, 64, 3), find_recipe("module", "int8-static"))
    with pytest.raises(QuantizationError, match="never observed"):
        convert_qat(student)
    student.module(_mel())  # still observing: what was seen until now counts
    assert convert_qat(student).counts


def test_the_student_alone_is_refused() -> None:
    student: Any = prepare_qat(nn.Sequential(nn.Linear(64, 64)), "int8-dynamic").module
    with pytest.raises(QuantizationError, match="give what prepare_qat returned"):
        convert_qat(student)


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_what_is_not_finite_is_never_converted(part: str) -> None:
    student = prepare_qat(nn.Sequential(nn.Conv1d(64, 64, 3)), find_recipe("module", "int8-static"))
    student.module(_mel())
    with torch.no_grad():
        dict(student.module.named_parameters())[f"0.{part}"].view(-1)[0] = torch.inf
    with pytest.raises(QuantizationError, match=f"'0.{part}' is not finite: training went wrong"):
        convert_qat(student)

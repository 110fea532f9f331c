"""Codes that Intel Neural Compressor chooses: exactly its own, in our layers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tts_compress
from tests.rules import make_recipe
from tts_compress.compression import compress
from tts_compress.errors import MissingExtraError
from tts_compress.torch.convert import inc_codes
from tts_compress.torch.layers.base import group_scales, pack_nibbles, round_groups
from tts_compress.torch.layers.int4 import Int4Linear

_GROUP = 32


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the package, in a folder of its own: importing it makes another in there."""
    monkeypatch.chdir(tmp_path)
    for name in ("accelerate", "neural_compressor"):
        pytest.importorskip(name, reason="the extra 'inc' is not installed")
    return pytest.importorskip("neural_compressor.torch.quantization")


def _data() -> tuple[Tensor, Tensor]:
    """Return a weight and inputs that vary together."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(500, 12, generator=generator) @ torch.randn(12, 96, generator=generator)
    x = mixed / 4 + 0.2 * torch.randn(500, 96, generator=generator)
    return torch.randn(40, 96, generator=generator) / 8, x


class _Block(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.layer.weight.data.copy_(weight)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)
        return outputs


class _Stack(nn.Module):
    """A layer where its GPTQ finds it."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Block(weight)])

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.blocks[0](x)
        return outputs


def _upstream(package: Any, weight: Tensor, x: Tensor | None) -> Tensor:
    """Return the weight its packed module stands for, by its documented calls and its arithmetic.

    Its GPTQ is given the inputs themselves.
    """
    settings = {"dtype": "int", "bits": 4, "use_sym": True, "group_size": _GROUP}
    stack: Any = _Stack(weight)
    if x is None:
        stack = package.prepare(stack, package.RTNConfig(**settings))
    else:
        config = package.GPTQConfig(**settings, percdamp=0.01, model_path=".")
        stack = package.prepare(stack, config)
        stack(x)
    recovered: Tensor = package.convert(stack).blocks[0].layer.recover()
    return recovered.double()


def _real(codes: Tensor, scales: Tensor) -> Tensor:
    grouped = codes.double().view(*scales.shape, -1) * scales.double().unsqueeze(-1)
    return grouped.view(codes.shape)


@pytest.mark.slow
@pytest.mark.parametrize("observed", [False, True])
def test_codes_are_its_own(package: Any, observed: bool) -> None:
    """They stand for the weight it computes with, but for the digits that scales lose."""
    weight, x = _data()
    upstream = _upstream(package, weight, x if observed else None)
    codes, scales = inc_codes(weight, x.t() @ x if observed else None, _GROUP)
    assert scales.dtype == torch.bfloat16
    assert int(codes.min()) >= -8
    assert int(codes.max()) <= 7
    steps = _real(torch.ones_like(codes), scales)
    assert torch.equal((upstream / steps).round().to(torch.int8), codes)
    # bfloat16 keeps 8 bits of a scale, float16 11.
    torch.testing.assert_close(_real(codes, scales), upstream, rtol=2**-8, atol=0)


def test_what_it_observes_lowers_the_error(package: Any) -> None:
    del package
    weight, x = _data()
    ours = group_scales(weight, _GROUP)
    errors = [
        float((x.double() @ (weight - real).t()).square().mean())
        for real in (
            _real(round_groups(weight, ours), ours),
            _real(*inc_codes(weight, None, _GROUP)),
            _real(*inc_codes(weight, x.t() @ x, _GROUP)),
        )
    ]
    assert errors[1] < errors[0] * 1.1  # it rounds to nearest as we do
    assert errors[2] < errors[0] / 4


def test_small_weights_keep_their_digits(package: Any) -> None:
    """Its scales are float16, in which one of 1e-6 has five bits and one of 1e-8 none."""
    del package
    weight, x = _data()
    rows = torch.logspace(-9, 0, len(weight)).unsqueeze(1)
    for moments in (None, x.t() @ x):
        codes, scales = inc_codes(weight * rows, moments, _GROUP)
        assert torch.isfinite(scales).all()
        error = (_real(codes, scales) - weight * rows) / rows
        assert float(error.square().mean()) < 0.06 * float(weight.square().mean())


def test_an_input_that_was_always_zero_keeps_its_weights(package: Any) -> None:
    del package
    weight, x = _data()
    x[:, 7] = 0
    codes, scales = inc_codes(weight, x.t() @ x, _GROUP)
    error = _real(codes, scales)[:, 7] - weight[:, 7]
    assert float(error.abs().max()) <= 0.51 * float(scales[:, 0].max())


@pytest.mark.slow
def test_it_leaves_nothing_behind(package: Any, tmp_path: Path) -> None:
    """Neither a folder nor a word nor a setting; in a process that has not imported it yet."""
    del package
    folder = tmp_path / "empty"
    folder.mkdir()
    program = (
        "import logging, torch\n"
        "from tts_compress.torch.convert import inc_codes\n"
        "weight = torch.randn(4, 64)\n"
        "kept = weight.clone()\n"
        "inc_codes(weight, None, 32)\n"
        "inc_codes(weight, torch.eye(64), 32)\n"
        "assert torch.equal(weight, kept)\n"
        "assert logging.root.manager.disable == logging.NOTSET\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(tts_compress.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(folder.iterdir())


@pytest.mark.parametrize("algorithm", ["inc-rtn", "inc-gptq"])
def test_a_recipe_names_it(package: Any, algorithm: Any) -> None:
    del package
    weight, x = _data()
    first = nn.Linear(96, 40)
    first.weight.data.copy_(weight)
    net = nn.Sequential(first, nn.ReLU(), nn.Linear(40, 8)).eval()
    observes = algorithm == "inc-gptq"
    rule = {"match": "0", "operators": ("Linear",), "weights": "int4", "group_size": _GROUP}
    rule |= {"algorithm": algorithm}
    recipe = make_recipe(rule, family="module", scheme="int4-weight-only")
    small = compress(net, recipe.scheme, recipe=recipe, calibration=[x] if observes else None)
    layer = small.get_submodule("0")
    assert isinstance(layer, Int4Linear)
    codes, scales = inc_codes(weight, x.t() @ x if observes else None, _GROUP)
    assert torch.equal(layer.state()["weight"], pack_nibbles(codes))
    assert torch.equal(layer.state()["weight_scale"], scales)
    assert torch.equal(layer.state()["bias"], first.bias)


@pytest.mark.parametrize("scheme", ["int4-gptq", "int4-inc"])
def test_a_scheme_names_it(package: Any, scheme: str) -> None:
    """No shipped recipe did, and no command could."""
    del package
    weight, x = _data()
    net: Any = nn.Sequential(nn.Linear(96, 64), nn.Linear(64, 40))
    net[1].weight.data.copy_(weight[:, :64])
    small = compress(net, scheme, calibration=[x])
    layer = small.get_submodule("1")
    assert isinstance(layer, Int4Linear)
    with torch.no_grad():
        hidden = net[0](x)
        errors = [
            float((other(hidden) - net[1](hidden)).square().mean())
            for other in (layer, compress(net, "int4-weight-only").get_submodule("1"))
        ]
    assert errors[0] < errors[1] / 2


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "neural_compressor"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "neural_compressor", None)
    with pytest.raises(MissingExtraError, match=r"tts-compress\[inc\]"):
        inc_codes(torch.ones(4, 32), None, 32)

"""A bare graph, a small vocoder: every scheme is as near to FP32 on every processor."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tests.processors.emulation import NATIVE, Processor
from tests.processors.stage import FP32, Stage, frame_snr_db, least_db
from tts_compress.compression import compress
from tts_compress.recipes.formats import find_scheme
from tts_compress.recipes.recipe import find_recipe, schemes_of

pytestmark = pytest.mark.processors

_SCHEMES = [name for name in schemes_of("onnx") if not find_scheme(name).trained]
_BANDS, _FRAMES = 12, 200


class _Vocoder(torch.nn.Module):
    """Upsamples mel bands (B, 12, T) to audio (B, 1, 8·T) as HiFi-GAN does."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn
        self.conv_pre = layers.Conv1d(_BANDS, 64, 7, padding=3)
        self.ups = layers.ModuleList(
            layers.ConvTranspose1d(wide, narrow, 2 * rate, rate, padding=rate // 2)
            for wide, narrow, rate in ((64, 48, 4), (48, 32, 2))
        )
        self.blocks = layers.ModuleList(
            layers.Conv1d(width, width, 5, dilation=3, padding=6) for width in (48, 32)
        )
        self.conv_post = layers.Conv1d(32, 1, 7, padding=3)

    def forward(self, mel: Any) -> Any:
        """Return audio."""
        act = torch.nn.functional.leaky_relu
        x = self.conv_pre(mel)
        for up, block in zip(self.ups, self.blocks, strict=True):
            x = up(act(x, 0.1))
            x = x + block(act(x, 0.1))
        return torch.tanh(3 * self.conv_post(act(x)))


def _mel(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(1, _BANDS, _FRAMES)).astype(np.float32)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Return the vocoder in FP32 and in every scheme, calibrated on other inputs."""
    folder: Path = tmp_path_factory.mktemp("vocoder")
    path, feeds = folder / "vocoder.onnx", folder / "feeds.npz"
    torch.manual_seed(0)
    torch.onnx.export(
        _Vocoder().eval(),
        (torch.zeros(1, _BANDS, 20),),
        str(path),
        input_names=["mel"],
        output_names=["audio"],
        dynamic_axes={"mel": {2: "T"}, "audio": {2: "N"}},
        dynamo=False,
    )
    np.savez(feeds, **{f"{call}/mel": _mel(call) for call in range(4)})
    graphs = {FP32: onnx.load(path)}
    for scheme in _SCHEMES:
        calibrated = find_recipe("onnx", scheme).calibration is not None
        small: Any = compress(f"onnx:{path}", scheme, calibration=feeds if calibrated else None)
        graphs[scheme] = small.graph()
    return Stage(tmp_path_factory.mktemp("stage"), graphs, [{"mel": _mel(8)}])


@pytest.mark.parametrize("scheme", _SCHEMES)
def test_a_scheme_is_as_near_to_fp32(stage: Stage, processor: Processor, scheme: str) -> None:
    here, there = (stage.play(which) for which in (NATIVE, processor))
    native = frame_snr_db(here[FP32], here[scheme])
    assert frame_snr_db(there[FP32], there[scheme]) >= least_db(native, processor, scheme)

"""A compressed Piper voice in sherpa-onnx, prepared as the documentation says."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.inspection.check import check_runtime
from tts_compress.models import load

_PAGE = Path(__file__).parents[2] / "docs" / "runtimes.md"
_TEXT = "Please call Stella."


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["int8", "int8-dynamic"])
def test_it_speaks_an_artifact_as_we_do(
    scheme: str, compressed: Callable[[str], Path], tmp_path: Path
) -> None:
    client = pytest.importorskip("sherpa_onnx")
    piper = pytest.importorskip("piper")
    voice = compressed(scheme) / "tiny.onnx"
    assert not check_runtime(load(voice), "sherpa-onnx").plays
    _prepare(voice, tmp_path / "sherpa")
    prepared = tmp_path / "sherpa" / "tiny.onnx"
    assert check_runtime(load(prepared), "sherpa-onnx").plays
    vits = client.OfflineTtsVitsModelConfig(
        model=str(prepared),
        tokens=str(prepared.with_name("tokens.txt")),
        noise_scale=0.0,
        noise_scale_w=0.0,
    )
    model = client.OfflineTtsModelConfig(vits=vits, num_threads=1)
    speech = client.OfflineTts(client.OfflineTtsConfig(model=model))
    settings = client.GenerationConfig()
    sentences = piper.PiperVoice.load(voice).phonemize(_TEXT)
    settings.phoneme_codepoints = [[ord(symbol) for symbol in one] for one in sentences]
    made = np.asarray(speech.generate(_TEXT, settings).samples)
    spoken: Any = load(voice)
    wanted = spoken.synthesize(_TEXT, seed=None).samples
    assert made.shape == wanted.shape
    assert np.allclose(made, wanted, atol=1e-4)
    assert np.ptp(wanted) > 0.1


def _prepare(voice: Path, out: Path) -> None:
    """Run the page's own lines on other paths."""
    blocks = re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "set_model_props" in block)
    line = 'voice, out = Path("out/voice-int8/voice.onnx"), Path("out/sherpa")'
    assert line in code
    exec(code.replace(line, ""), {"voice": voice, "out": out})  # noqa: S102

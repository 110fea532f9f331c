"""A bare graph that speaks as Kokoro does: LSTMs, predicted durations, noise, a melody."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.measures import snr_db
from tts_compress.compression import compress
from tts_compress.inspection.components import inspect_model
from tts_compress.models import open_model
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import open_session
from tts_compress.recipes.formats import find_scheme
from tts_compress.recipes.recipe import find_recipe, schemes_of

torch = pytest.importorskip("torch")

_SCHEMES = [name for name in schemes_of("onnx") if not find_scheme(name).trained]
_INTEGER = ("int8", "int8-static", "int8-dynamic", "int4-int8")
_DECIDING = {"duration_lstm", "duration_proj"}


class _Speaker(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Predicts durations as Kokoro does where `repeats`, else as VITS does."""

    def __init__(self, *, repeats: bool) -> None:
        super().__init__()
        layers = torch.nn
        self.repeats = repeats
        self.embedding = layers.Embedding(40, 48)
        self.lstm = layers.LSTM(48, 64, bidirectional=True)
        self.duration_lstm = layers.LSTM(128, 64, bidirectional=True)
        self.duration_proj = layers.Linear(128, 1)
        self.style = layers.Linear(24, 128)
        self.pitch = layers.Conv1d(128, 1, 1)
        self.decoder = layers.Conv1d(128, 32, 5, padding=2)
        self.last = layers.Conv1d(32, 1, 7, padding=3)

    def forward(self, ids: Any, style: Any) -> Any:
        """Return audio (1, T, 1) and real durations of ids (1, L) in a style (1, 24)."""
        x, _ = self.lstm(self.embedding(ids).transpose(0, 1))
        predicted = self.duration_proj(self.duration_lstm(x)[0])[:, 0, 0]
        real = 2 + 3 * torch.sigmoid(4 * predicted)
        if self.repeats:
            frames = torch.repeat_interleave(x[:, 0], torch.round(real).long(), dim=0)
        else:
            ends = torch.cumsum(torch.ceil(real), 0)
            steps = torch.arange(ends[-1].long(), device=x.device)
            before = torch.cat([torch.zeros(1), ends[:-1]])
            path = (steps[:, None] < ends) & (steps[:, None] >= before)
            frames = path.float() @ x[:, 0]
        frames = (frames + self.style(style)).T[None]
        melody = 0.2 + torch.sigmoid(self.pitch(frames))
        noise = torch.rand_like(melody) + torch.randn_like(melody)
        phase = torch.cumsum(melody - torch.floor(melody), 2)
        sound = self.decoder(torch.relu(frames) + torch.sin(phase) + 0.05 * noise)
        return self.last(torch.nn.functional.leaky_relu(sound, 0.1)), real


@pytest.fixture(scope="module", params=[True, False], ids=["repeats", "masks"])
def speaker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path: Path = tmp_path_factory.mktemp("speaker") / "speaker.onnx"
    torch.onnx.export(
        _Speaker(repeats=request.param).eval(),
        (torch.arange(12)[None], torch.zeros(1, 24)),
        str(path),
        input_names=["ids", "style"],
        output_names=["audio", "durations"],
        dynamic_axes={"ids": {1: "L"}, "audio": {2: "T"}},
        dynamo=False,
    )
    return path


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("calls") / "calls.npz"
    np.savez(path, **{f"{i}/{n}": v for i in range(3) for n, v in _call(i).items()})
    return path


def _call(seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, 40, (1, 10 + 5 * seed))
    return {"ids": ids, "style": generator.normal(size=(1, 24)).astype(np.float32)}


def _speak(graph: onnx.ModelProto, seed: int = 5) -> tuple[Any, Any]:
    fed = feed_noise(graph)
    noise = draw_noise([value.name for value in fed.graph.input], seed=(seed,))
    audio, durations = open_session(fed, "speaker").run(None, _call(seed) | noise)
    return audio, durations


@pytest.mark.parametrize(
    ("speaker", "scheme"),
    [*((True, scheme) for scheme in _SCHEMES), (False, "int8")],
    indirect=["speaker"],
    scope="module",
)
def test_every_scheme_speaks_the_same_with_the_same_noise(
    speaker: Path, calls: Path, tmp_path: Path, scheme: str
) -> None:
    observes = find_recipe("onnx", scheme).calibration is not None
    spec = speaker if observes else f"onnx:{speaker}"
    small: Any = compress(spec, scheme=scheme, calibration=calls if observes else None)
    original, made = _speak(onnx.load(speaker)), _speak(small.graph())
    assert original[0].shape == made[0].shape
    assert snr_db(original[0], made[0]) > (10 if scheme.startswith("int4") else 20)
    kept = [layer for layer in small.manifest.layers if layer.decides_durations]
    assert {layer.module for layer in kept} == _DECIDING
    # A tenth of the error of half precision in as many bytes, unless half precision is asked for.
    stored = "float16" if scheme in {"fp16", "bf16"} else "int16"
    assert {(layer.weights, layer.activations) for layer in kept} == {(stored, "none")}
    counts = small.manifest.counts
    assert counts.get("LSTM int8/dynamic", 0) == (1 if scheme in _INTEGER else 0)
    properties = inspect_model(open_model(str(small.save(tmp_path / "small"))))["properties"]
    assert set(properties["durations"].split(", ")) == _DECIDING


def test_original_says_what_decides_durations(speaker: Path) -> None:
    found = inspect_model(open_model(f"onnx:{speaker}"))
    assert set(found["properties"]["durations"].split(", ")) == _DECIDING
    (lstm,) = (part for part in found["components"] if part["name"] == "duration_lstm")
    assert lstm["parameters"] == 2 * 4 * 64 * (128 + 64)

"""A tiny voice of ZipVoice's layout: conditions of both texts, a flow beside features, Vocos."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from tests.models.contract.language import export

BANDS, WIDTH, N_FFT, HOP, RATE, STEPS = 100, 32, 1024, 256, 24_000, 16
SYMBOLS = "_^$ abcdefhijklmnoprstuvwxzæðŋɐɑɔəɚɛɜɡɪɹɾʃʊʌʒˈˌːθᵻ.,!?"


class TextEncoder(nn.Module):
    """Conditions of the frames of the recording and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(len(SYMBOLS), WIDTH), nn.Linear(WIDTH, BANDS)

    def forward(
        self, tokens: Tensor, prompt_tokens: Tensor, prompt_features_len: Tensor, speed: Tensor
    ) -> Tensor:
        """Return shape `[1, T, 100]`: every token has as many frames as the recording's have."""
        read = torch.cat([prompt_tokens, tokens], 1)
        length = torch.ceil(prompt_features_len / prompt_tokens.shape[1] * read.shape[1] / speed)
        count: Any = length.reshape(()).long()
        places = torch.div(torch.arange(count) * read.shape[1], count, rounding_mode="floor")
        return self.out(torch.relu(self.embed(read)))[:, places]  # type: ignore[no-any-return]


class Flow(nn.Module):
    """The direction of a flow, with guidance."""

    def __init__(self) -> None:
        super().__init__()
        self.join, self.out = nn.Linear(3 * BANDS, WIDTH), nn.Linear(WIDTH, BANDS)

    def forward(
        self, t: Tensor, x: Tensor, text: Tensor, speech: Tensor, guidance_scale: Tensor
    ) -> Tensor:
        """Return shape `[1, T, 100]`."""
        guided, bare = (
            self.out(torch.tanh(self.join(torch.cat([x, text * kept, speech], -1)) + t))
            for kept in (1.0, 0.0)
        )
        return (1 + guidance_scale) * guided - guidance_scale * bare  # type: ignore[no-any-return]


class Vocos(nn.Module):
    """Magnitudes, cosines and sines of a mel spectrogram."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv1d(BANDS, WIDTH, 7, padding=3)
        self.heads = nn.ModuleList(nn.Conv1d(WIDTH, N_FFT // 2 + 1, 1) for _ in range(2))

    def forward(self, mels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return three tensors of shape `[1, 513, T]`."""
        hidden = torch.relu(self.embed(mels))
        magnitude, phase = (head(hidden) for head in self.heads)
        return torch.exp((magnitude + 2).clamp(max=4)), torch.cos(3 * phase), torch.sin(3 * phase)


def networks() -> tuple[TextEncoder, Flow, Vocos]:
    """Return the three networks, seeded."""
    torch.manual_seed(0)
    return TextEncoder().eval(), Flow().eval(), Vocos().eval()


def write_voice(folder: Path) -> Path:
    """Write the graphs under the names that k2-fsa publishes, and return the first."""
    encoder, flow, vocos = networks()
    folder.mkdir()
    ids, frames = torch.ones(1, 5, dtype=torch.int64), torch.randn(1, 9, BANDS)
    inputs = {"tokens": ids, "prompt_tokens": ids[:, :3]}
    inputs |= {"prompt_features_len": torch.tensor(10), "speed": torch.tensor(1.0)}
    time = {1: "T"}
    axes: dict[str, Any] = {"tokens": time, "prompt_tokens": {1: "P"}, "text_condition": time}
    export(encoder, inputs, ["text_condition"], axes, folder / "text_encoder.onnx")
    inputs = {"t": torch.tensor(0.5), "x": frames, "text_condition": frames}
    inputs |= {"speech_condition": frames, "guidance_scale": torch.tensor(1.0)}
    axes = dict.fromkeys(("x", "text_condition", "speech_condition", "v"), time)
    export(flow, inputs, ["v"], axes, folder / "fm_decoder.onnx")
    axes = {name: {2: "T"} for name in ("mels", "mag", "x", "y")}
    inputs = {"mels": frames.transpose(1, 2)}
    model = export(vocos, inputs, ["mag", "x", "y"], axes, folder / "vocos_24khz.onnx")
    stated = {"model_type": "vocos", "n_fft": "1024", "hop_length": "256", "win_length": "1024"}
    stated |= {
        "sample_rate": "24000",
        "center": "1",
        "normalized": "0",
        "window_type": "hann",
        "pad_mode": "reflect",
    }
    onnx.helper.set_model_props(model, stated)
    onnx.save(model, folder / "vocos_24khz.onnx")
    lines = [f"{symbol}\t{number}\n" for number, symbol in enumerate(SYMBOLS)]
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    return folder / "text_encoder.onnx"


@torch.no_grad()
def spoken(features: Tensor, transcript: Sequence[int], ids: Sequence[int], noise: Tensor) -> Any:
    """Return the samples of the authors' loop.

    Args:
        features: Of the recording, shape `[1, P, 100]`.
        transcript: Tokens of what it says.
        ids: Tokens of the text.
        noise: Shape `[1, T, 100]`, of the recording's frames and more.
    """
    encoder, flow, vocos = networks()
    count, tokens = torch.tensor(features.shape[1]), torch.tensor([ids])
    text = encoder(tokens, torch.tensor([transcript]), count, torch.tensor(1.0))
    x = noise[:, : text.shape[1]]
    speech = nn.functional.pad(features, (0, 0, 0, text.shape[1] - features.shape[1]))
    times = torch.linspace(0, 1, STEPS + 1)
    times = 0.5 * times / (1 - 0.5 * times)
    for now, then in pairwise(times):
        x = x + flow(now, x, text, speech, torch.tensor(1.0)) * (then - now)
    mel = x[:, features.shape[1] :].transpose(1, 2) / 0.1
    magnitude, cosine, sine = vocos(mel)
    spectra = magnitude * torch.complex(cosine, sine)
    return torch.istft(spectra, N_FFT, HOP, window=torch.hann_window(N_FFT))[0].numpy()

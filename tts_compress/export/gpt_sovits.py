"""GPT-SoVITS as four graphs and a contract by which they speak.

`encoder.onnx` reads the phonemes and the recording, `prefill.onnx` text and prompt, `step.onnx` one
token with the keys and values of those before, and `decoder.onnx` makes sound of all tokens. The
two graphs of the language model keep their weights in one file.

Phonemes and features of BERT are made before the graphs. These features are zeros but for Chinese;
of a text the contract gives zeros always.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx.operators import shape_as_tensor

from tts_compress.errors import ModelError
from tts_compress.export.fourier import Frames
from tts_compress.export.graphs import copy_shell, observed, write_graph
from tts_compress.models.base import TorchModel
from tts_compress.models.files import write_prompt
from tts_compress.models.gpt_sovits.checkpoint import VERSIONS
from tts_compress.models.graph_file import SharedWeights
from tts_compress.reading import read_text
from tts_compress.torch.tracing import Axes

GRAPHS = ("encoder.onnx", "prefill.onnx", "step.onnx", "decoder.onnx")
"""Files of the graphs, in the order in which they run."""

SHORTEST = 11
"""Tokens that are drawn before speech may end."""

_WEIGHTS = "language_model.data"
_NEVER = -1e4
"""Added to scores that must not be chosen; finite, and within FP16."""

_SILENCE = 0.3
"""Parts of the sample rate that are put behind the recording, in samples of 16 kHz."""

_BANDS = {"v1": None, "v2": 704}
"""Lowest frequencies that the style encoder reads, of the versions that are exported."""

_NOISE = 0.5
"""Deviation of the synthesizer's noise."""

_EXAMPLE = 23
"""Phonemes and tokens of the calls that are traced."""


class Positions(nn.Module):
    """Upstream's sinusoidal positions, without its table of 4,000 rows."""

    def __init__(self, official: Any) -> None:
        super().__init__()
        width = official.embedding_dim
        exponents = torch.arange(0, width, 2).float() * (-np.log(10_000.0) / width)
        self.rates = nn.Buffer(exponents.exp(), persistent=False)
        self.alpha, self.scale = official.alpha, official.x_scale

    def forward(self, x: Tensor, first: Tensor | int = 0) -> Tensor:
        """Return values (1, n, D) with their positions, of which the first is stated."""
        times = first + torch.arange(x.shape[1])
        angles = times[:, None].to(self.rates.dtype) * self.rates
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        placed: Tensor = x * self.scale + self.alpha * waves
        return placed


class Encoder(nn.Module):
    """The first graph: the text for the language model, and what a recording sounds like."""

    def __init__(self, root: Any, data: dict[str, Any], bands: int | None) -> None:
        super().__init__()
        self.hubert, self.bands = root.hubert, bands
        self.embedding, self.bert_proj = root.t2s.ar_text_embedding, root.t2s.bert_proj
        self.positions = Positions(root.t2s.ar_text_position)
        self.ssl_proj, self.quantizer = root.vits.ssl_proj, root.vits.quantizer
        self.ref_enc = root.vits.ref_enc
        size, hop = data["filter_length"], data["hop_length"]
        self.frames = Frames(size, hop, data["win_length"], (size - hop) // 2)
        self.silence = int(data["sampling_rate"] * _SILENCE)

    def forward(
        self,
        phones: Tensor,
        bert: Tensor,
        prompt_phones: Tensor,
        prompt_bert: Tensor,
        recording: Tensor,
        recording_16k: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the text (1, P + N, D), the recording's tokens (1, T) and its style (1, G, 1).

        Args:
            phones: Phonemes to speak (1, N).
            bert: Their features (1, 1024, N).
            prompt_phones: Phonemes of the recording (1, P).
            prompt_bert: Their features (1, 1024, P).
            recording: Samples (1, L) at the voice's rate.
            recording_16k: The same at 16 kHz.
        """
        features = torch.cat([prompt_bert, bert], dim=2).transpose(1, 2)
        text = self.embedding(torch.cat([prompt_phones, phones], dim=1)) + self.bert_proj(features)
        sound = functional.pad(recording_16k, (0, self.silence))
        heard = self.hubert(sound, return_dict=False)[0].transpose(1, 2)
        prompt = self.quantizer.encode(self.ssl_proj(heard))[0]
        loudest = recording.abs().max()
        quieter = recording / torch.where(loudest > 1, loudest.clamp(max=2), 1.0)
        spectrum = torch.sqrt(self.frames(quieter) + 1e-8)[:, :, : self.bands]
        return self.positions(text), prompt, self.ref_enc(spectrum.transpose(1, 2))


class T2SGraph(nn.Module):
    """The language model, as both of its graphs compute it."""

    def __init__(self, t2s: Any) -> None:
        super().__init__()
        self.embedding, self.positions = t2s.ar_audio_embedding, Positions(t2s.ar_audio_position)
        self.blocks, self.head = t2s.t2s_transformer.blocks, t2s.ar_predict_layer
        self.ending = nn.Buffer(torch.eye(t2s.vocab_size)[t2s.EOS] * _NEVER, persistent=False)

    def run(self, x: Tensor, past: Sequence[Tensor], mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return scores (1, 1, V) behind the last position, and each block's keys and values.

        Args:
            x: Embedded positions (1, n, D).
            past: Keys and values (1, H, m, D / H) of each block; none at first.
            mask: Is added to the scores of attention, (n, m + n).
        """
        states: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            x, *both = _attend(block, x, past[2 * index : 2 * index + 2], mask)
            states += both
        return self.head(x[:, -1:]), *states


def _attend(
    block: Any, x: Tensor, past: Sequence[Tensor], mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a `T2SBlock` makes of x (1, n, D), and all its keys and values."""
    heads, width = block.heads, x.shape[2] // block.heads
    query, key, value = block.qkv(x).reshape(1, -1, 3, heads, width).permute(2, 0, 3, 1, 4)
    if past:
        key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
    scores = torch.matmul(query * width**-0.5, key.transpose(2, 3))
    shares = (scores if mask is None else scores + mask).softmax(dim=-1)
    mixed = torch.matmul(shares, value).transpose(1, 2).reshape(1, -1, heads * width)
    x = block.norm1(x + block.out(mixed))
    return block.norm2(x + block.down(torch.relu(block.up(x)))), key, value


class Prefill(T2SGraph):
    """The second graph: the text and the recording's tokens."""

    def forward(self, text: Tensor, prompt: Tensor) -> tuple[Tensor, ...]:
        """Return scores and states of text (1, N, D) and tokens (1, T)."""
        x = torch.cat([text, self.positions(self.embedding(prompt))], dim=1)
        # Text attends to all of the text, sound to what was before it.
        places = torch.arange(x.shape[1])
        last = torch.maximum(places, shape_as_tensor(text)[1] - 1)
        hidden = places[None, :] > last[:, None]
        scores, *states = self.run(x, (), hidden.to(x.dtype) * _NEVER)
        return scores + self.ending, *states


class T2SStep(T2SGraph):
    """The third graph: one more token."""

    def forward(self, token: Tensor, length: Tensor, step: Tensor, *past: Tensor) -> Any:
        """Return scores and states behind one token (1, 1).

        Args:
            token: The token that was drawn last.
            length: Tokens of the recording (1,).
            step: Tokens that were drawn before this one (1,).
            past: Keys and values (1, H, m, D / H) of each block.
        """
        x = self.positions(self.embedding(token), length + step)
        scores, *states = self.run(x, past, None)
        return scores + (step < SHORTEST - 1).to(x.dtype) * self.ending, *states


class Decoder(nn.Module):
    """The fourth graph: sound of tokens."""

    def __init__(self, vits: Any) -> None:
        super().__init__()
        self.quantizer, self.enc_p = vits.quantizer, vits.enc_p
        self.flow, self.dec = vits.flow, vits.dec

    def forward(self, phones: Tensor, codes: Tensor, style: Tensor) -> Tensor:
        """Return audio (1, samples) of phonemes (1, N), tokens (1, K) and a style (1, G, 1)."""
        latents = self.quantizer.decode(codes[None])
        latents = torch.stack([latents, latents], dim=3).flatten(2)  # 50 frames a second
        length, symbols = (shape_as_tensor(values)[-1:] for values in (latents, phones))
        _, mean, log_deviation, mask, *_ = self.enc_p(latents, length, phones, symbols, style)
        noise = torch.randn_like(mean) * _NOISE
        latents = self.flow(mean + noise * log_deviation.exp(), mask, g=style, reverse=True)
        audio: Tensor = self.dec(latents * mask, g=style)
        return audio[:, 0]


def write_graphs(model: TorchModel, directory: Path) -> tuple[list[Path], dict[str, Any]]:
    """Write the four graphs with their contract; return them and the contract's name."""
    voice: Any = model
    _check(voice)
    root: Any = copy_shell(voice.root())
    phones, bert = voice.prompt_text()
    settings = voice.loaded.settings
    encoder = Encoder(root, settings.sovits["data"], _BANDS[voice.version]).eval()
    prompt = torch.tensor([phones])
    text = torch.arange(1, _EXAMPLE)[None]
    zeros, rate = torch.zeros(1, bert.shape[0], text.shape[1]), voice.sample_rate
    arguments = (text, zeros, prompt, bert[None], torch.zeros(1, 3 * rate), torch.zeros(1, 48_000))
    paths = [directory / name for name in GRAPHS]
    outputs: Axes = {"text": {1: "all"}, "prompt": {1: "prompt"}, "style": {}}
    write_graph(encoder, arguments, _ENCODER_INPUTS, outputs, paths[0])
    _write_language_model(root.t2s, text.shape[1], paths)
    style = torch.zeros(1, root.vits.gin_channels, 1)
    inputs: Axes = {"phones": {1: "symbols"}, "codes": {1: "tokens"}, "style": {}}
    sound: Axes = {"audio": {1: "samples"}}
    write_graph(Decoder(root.vits).eval(), (text, text, style), inputs, sound, paths[3])
    np.savez_compressed(directory / "prompt.npz", reference=bert[None].cpu().numpy())
    is_spelled = _write_lexicon(voice, directory)
    contract = _contract_text(voice, phones, is_spelled=is_spelled)
    (directory / "contract.toml").write_text(contract, encoding="utf-8")
    write_prompt(voice.prompt, directory)
    return paths, {"contract": "contract.toml"}


_ENCODER_INPUTS: Axes = {
    "phones": {1: "symbols"},
    "bert": {2: "symbols"},
    "prompt_phones": {1: "prompt_symbols"},
    "prompt_bert": {2: "prompt_symbols"},
    "recording": {1: "samples"},
    "recording_16k": {1: "samples_16k"},
}


def _write_language_model(t2s: Any, length: int, paths: Sequence[Path]) -> None:
    """Write both graphs of the language model, and the file of their weights."""
    names = [f"{kind}_{number}" for number in range(t2s.num_layers) for kind in ("key", "value")]
    read: Axes = {f"past_{name}": {2: "before"} for name in names}
    outputs: Axes = {"logits": {}} | {f"present_{name}": {2: "all"} for name in names}
    text, token = torch.zeros(1, length, t2s.model_dim), torch.ones(1, length, dtype=torch.int64)
    width = t2s.model_dim // t2s.num_head
    past = [torch.zeros(1, t2s.num_head, length, width) for _ in names]
    first: Axes = {"text": {1: "symbols"}, "prompt": {1: "prompt"}}
    write_graph(Prefill(t2s).eval(), (text, token), first, outputs, paths[1])
    counts: Axes = {"token": {}, "length": {}, "step": {}}
    inputs = (token[:, :1], token[0, :1], token[0, :1], *past)
    write_graph(T2SStep(t2s).eval(), inputs, {**counts, **read}, outputs, paths[2])
    shared = SharedWeights(paths[1].with_name(_WEIGHTS))
    for path in paths[1:3]:
        shared.write(onnx.load(path), path)


def _check(voice: Any) -> None:
    """Refuse what the graphs cannot compute."""
    version, options = VERSIONS[voice.version], voice.options
    if voice.version not in _BANDS:
        part = "a diffusion model and a vocoder" if version.vocoder else "a speaker encoder"
        raise ModelError(
            f"GPT-SoVITS {voice.version} has {part}, of which there is no graph; those that are "
            f"exported are {', '.join(_BANDS)}"
        )
    if voice.prompt.text is None:
        raise ModelError(
            f"'{voice.spec}' has no recording with its text; put reference.wav and reference.txt "
            "beside the configuration or the T2S model"
        )
    if options.speed_factor != 1:
        raise ModelError(
            f"speed_factor is {options.speed_factor:g}, by which torch stretches what has no fixed "
            "length; leave it at 1"
        )


@contextmanager
def recording(model: TorchModel, directory: Path) -> Iterator[list[Path]]:
    """Record the phonemes of what is said in the block, as a calibration set of ids."""
    voice: Any = model
    _check(voice)
    path, texts = directory / "calibration.toml", list[str]()

    def see(_latents: Tensor, _length: Tensor, phones: Tensor, *_: Any) -> None:
        texts.append(f"ids: {' '.join(map(str, phones[0].tolist()))}")

    with observed(voice.root().vits.enc_p, "forward", see):
        yield [path]
    language = json.dumps(voice.options.text_lang)
    head = f'version = 1\nname = "calibration"\nlanguage = {language}\n'
    path.write_text(f"{head}texts = {json.dumps(texts, indent=2)}\n", encoding="utf-8")


_LANGUAGES = {"en": "en-us", "ja": "ja", "ko": "ko", "zh": "cmn", "yue": "yue"}
"""Languages by espeak-ng's names, which contracts have."""

_TOKENS, _LEXICON = "tokens.txt", "lexicon.txt"

_SPELLED = f"""source = "lexicon"
vocabulary = "{_TOKENS}"
lexicon = "{_LEXICON}"
endings = ".!?,…-"
replace = {{ ";" = ",", ":" = "," }}"""

_CONTRACT = Path(__file__).with_name("templates") / "gpt-sovits.toml"
"""The contract, with names in braces where a voice's own values stand."""

_STEPS_PER_SECOND = 50
_MOST_STEPS = 1_499
"""Upstream's counts, by which it ends speech that does not end itself."""

_DICTIONARIES = (("engdict-hot.rep", 0), ("cmudict.rep", 56), ("cmudict-fast.rep", 0))
"""Upstream's files of English words, the first of which counts, and lines of their heads."""

_MOST_BYTES = 1 << 26


def _contract_text(voice: Any, phones: Sequence[int], *, is_spelled: bool) -> str:
    """Return the contract of a voice.

    Args:
        voice: A `GptSovitsModel`.
        phones: Phonemes of its recording's text.
        is_spelled: There is a lexicon; else texts are ids.
    """
    t2s, options = voice.loaded.settings.t2s, voice.options
    end = t2s["model"]["EOS"]
    draw = {
        "logits": "logits",
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "repetition_penalty": options.repetition_penalty,
        "after": "prompt",
        "greedy": end,
    }
    language = _LANGUAGES.get(options.text_lang.removeprefix("all_"))
    steps = min(_STEPS_PER_SECOND * int(t2s["data"]["max_sec"]), _MOST_STEPS)
    return read_text(_CONTRACT).format(
        version=voice.version,
        rate=voice.sample_rate,
        language=f'language = "{language}"\n' if language else "",
        tokens=_SPELLED if is_spelled else 'source = "ids"',
        phones=list(phones),
        end=end,
        longest=steps - 1,  # one more is drawn before the loop
        sample="\n".join(f"{name} = {json.dumps(value)}" for name, value in draw.items()),
    )


def _write_lexicon(voice: Any, directory: Path) -> bool:
    """Write the words that upstream's English frontend looks up; return False of other languages.

    Its rules for numbers, homographs and words that are in no dictionary are not there.
    """
    if voice.options.text_lang != "en":
        return False
    checkout = voice.loaded.official.checkout
    list_of_symbols = checkout.load("text.symbols" if voice.version == "v1" else "text.symbols2")
    ids = {symbol: number for number, symbol in enumerate(list_of_symbols.symbols)}
    words: dict[str, list[str]] = {}
    for word, phones in _words(checkout.root / "GPT_SoVITS/text"):
        words.setdefault(word, [phone for phone in phones if phone in ids])
    used = {phone for phones in words.values() for phone in phones}
    used.update(list_of_symbols.punctuation)
    lines = {
        _TOKENS: [f"{symbol} {ids[symbol]}" for symbol in sorted(used)],
        _LEXICON: [f"{word} {' '.join(phones)}" for word, phones in words.items() if phones],
    }
    for name, content in lines.items():
        (directory / name).write_text("\n".join([*content, ""]), encoding="utf-8")
    return True


def _words(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield English words and their phonemes."""
    for name, head in _DICTIONARIES:
        for line in read_text(folder / name, _MOST_BYTES).splitlines()[head:]:
            word, *phones = line.split() or [""]
            if word[:1].isalpha():
                yield word.lower(), phones

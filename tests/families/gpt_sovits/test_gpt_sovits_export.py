"""GPT-SoVITS as graphs and a contract: equal to torch, compressed, and spoken by onnxruntime."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.measures import snr_db
from tts_compress.compression import compress
from tts_compress.errors import ModelError
from tts_compress.models import load
from tts_compress.models.base import Prompt
from tts_compress.models.contract.inputs import RecordingInput
from tts_compress.models.contract.sound import read_recording
from tts_compress.models.gpt_sovits.loading import Official
from tts_compress.models.gpt_sovits.model import GptSovitsModel
from tts_compress.models.torch_noise import paired_noise

torch = pytest.importorskip("torch")

from tts_compress.export import OnnxModule, export, record_feeds  # noqa: E402
from tts_compress.export.gpt_sovits import GRAPHS, write_graphs  # noqa: E402

END, STEPS, PHONES = 1024, 50, "ids: 24 49 61 35 26 7 3"
"""The token that ends speech, most tokens of a model of `max_sec` 1, and a text."""

OFTEN = (358, 213, 450, 245)
"""Tokens that the tiny model says most."""


@dataclass(frozen=True)
class Pair:
    """A model, and its export opened as a voice."""

    model: GptSovitsModel
    voice: Any
    folder: Path

    @property
    def root(self) -> Any:
        """The model's networks."""
        return self.model.root()

    def heard(self) -> tuple[Any, Any]:
        """Return the recording at 32 and 16 kHz, (1, L), as the contract gives it."""
        roles = [RecordingInput(role="recording", rate=rate) for rate in (32_000, 16_000)]
        path = self.folder / "reference.wav"
        found = [torch.from_numpy(read_recording(path, role))[None] for role in roles]
        return found[0], found[1]

    def reference(self, official: Official) -> tuple[Any, Any, Any]:
        """Return torch's tokens (1, T), style (1, G, 1) and spectrum of the recording."""
        recording, recording_16k = self.heard()
        data, vits = self.model.loaded.settings.sovits["data"], self.root.vits
        sizes = (data[n] for n in ("filter_length", "sampling_rate", "hop_length", "win_length"))
        with torch.no_grad(), official.running():
            spectrum = official.inference.spectrogram_torch(recording, *sizes, center=False)
            read = spectrum if self.model.version == "v1" else spectrum[:, :704]
            sound = torch.nn.functional.pad(recording_16k, (0, 9600))
            hidden = self.root.hubert(sound)["last_hidden_state"].transpose(1, 2)
            codes = vits.extract_latent(hidden)[0]
            style = vits.ref_enc(read, torch.ones_like(read[:, :1]))
        return codes, style, spectrum


@pytest.fixture(scope="module")
def make_pair(
    make_gpt_sovits: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Pair]:
    """Return a function that exports a tiny model, whose speech ends within a second."""

    def make(version: str) -> Pair:
        options = "text_lang=en&prompt_lang=en&temperature=3"
        model = GptSovitsModel.open(f"{make_gpt_sovits(version)}?{options}", "gpt-sovits:tiny")
        root: Any = model.root()
        head = root.t2s.ar_predict_layer.weight
        # What is said often is in the recording, too; the end is now and then the most probable.
        prompt = model.tts.prompt_cache["prompt_semantic"]
        heard = prompt.bincount().argsort(descending=True)[:4]
        with torch.no_grad():
            head[END] = head[OFTEN[3]]
            head[[*heard.tolist(), *OFTEN]] = head[[*OFTEN, *heard.tolist()]]
            head *= 0.3
        folder = tmp_path_factory.mktemp("export") / version
        files = export(model, folder)
        assert [path.name for path in files] == [*GRAPHS, "export.json"]
        return Pair(model, load(folder / "encoder.onnx"), folder)

    return make


@pytest.fixture(scope="module")
def pair(make_pair: Callable[[str], Pair]) -> Pair:
    """Return a v2 and its export; neither is changed."""
    return make_pair("v2")


def _flat(text: str) -> Any:
    return torch.tensor([[int(word) for word in text.split()[1:]]])


def _graph(pair: Pair, name: str, **inputs: Any) -> Any:
    return OnnxModule(pair.folder / f"{name}.onnx", threads=1)(**inputs)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_encoder_is_torchs(
    make_pair: Callable[[str], Pair], official: Official, version: str
) -> None:
    """Features of BERT, which a contract gives as zeros, are inputs of the graph."""
    pair = make_pair(version)
    t2s, (recording, recording_16k) = pair.root.t2s, pair.heard()
    for symbols in (3, 31):
        bert = torch.randn(1, 1024, symbols + 5, generator=torch.Generator().manual_seed(symbols))
        phones = torch.arange(symbols + 5)[None]
        text, prompt, style = _graph(
            pair,
            "encoder",
            phones=phones[:, 5:],
            bert=bert[:, :, 5:],
            prompt_phones=phones[:, :5],
            prompt_bert=bert[:, :, :5],
            recording=recording,
            recording_16k=recording_16k,
        )
        with torch.no_grad():
            embedded = t2s.ar_text_embedding(phones) + t2s.bert_proj(bert.transpose(1, 2))
            expected = t2s.ar_text_position(embedded)
        codes, wanted, _ = pair.reference(official)
        assert torch.allclose(text, expected, atol=1e-4)
        assert torch.equal(prompt, codes)
        assert len(set(codes[0].tolist())) > 1
        assert torch.allclose(style, wanted, atol=1e-4 * float(wanted.abs().max()))


def test_the_language_model_is_torchs(pair: Pair) -> None:
    """Prefill and steps with a cache score as torch does that reads all tokens at once."""
    t2s, generator = pair.root.t2s, torch.Generator().manual_seed(3)
    phones = torch.randint(0, 732, (1, 19), generator=generator)
    tokens = torch.randint(0, 1024, (1, 30), generator=generator)
    bert = torch.randn(1, 1024, 19, generator=generator)
    with torch.no_grad():
        expected = t2s(phones, bert, tokens)[0]  # behind the text, and behind each token
        embedded = t2s.ar_text_embedding(phones) + t2s.bert_proj(bert.transpose(1, 2))
        text = t2s.ar_text_position(embedded)
    scores, *states = _graph(pair, "prefill", text=text, prompt=tokens[:, :9])
    names = [f"past_{kind}_{layer}" for layer in range(2) for kind in ("key", "value")]
    step = OnnxModule(pair.folder / "step.onnx", threads=1)
    for number in range(22):
        wanted = expected[9 + number].clone()
        if number < 11:
            wanted[END] += -1e4  # speech does not end yet
        assert torch.allclose(scores[0, 0], wanted, atol=1e-4), number
        if number == 21:
            break
        counts = {"length": torch.tensor([9]), "step": torch.tensor([number])}
        past = dict(zip(names, states, strict=True))
        scores, *states = step(token=tokens[:, 9 + number : 10 + number], **counts, **past)


@pytest.fixture
def noise(official: Official, monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Return a function that has upstream draw tokens with the noise of a contract."""
    utils = official.checkout.load("AR.models.utils")

    def choose(seed: int | None) -> None:
        steps = iter(range(2 * STEPS))

        def draw(shares: Any) -> Any:
            scores = shares.double().log().numpy()
            if seed is not None:
                generator = np.random.default_rng((seed, 0, 1 << 21, next(steps)))
                scores += generator.gumbel(size=(1, END + 1))[:, : scores.shape[1]]
            return torch.from_numpy(scores).argmax(-1, keepdim=True).to(torch.int)

        monkeypatch.setattr(utils, "multinomial_sample_one_no_sync", draw)

    return choose


def test_it_says_what_upstream_says(
    pair: Pair, official: Official, noise: Callable[[int | None], None]
) -> None:
    """The same tokens of equal noise, speech that ends by itself or is ended, and equal sound."""
    codes, _, spectrum = pair.reference(official)
    prompt, bert = pair.model.prompt_text()
    assert not bert.any()  # upstream gives zeros but for Chinese
    text, options = _flat(PHONES), pair.model.options
    phones = torch.cat([torch.tensor([prompt]), text], dim=1)
    inputs = {"x": [phones[0]], "x_lens": torch.tensor([phones.shape[1]]), "prompts": codes}
    inputs |= {"bert_feature": [torch.zeros(1024, phones.shape[1])], "early_stop_num": STEPS}
    drawing = ("top_k", "top_p", "temperature", "repetition_penalty")
    inputs |= {name: getattr(options, name) for name in drawing}
    lengths = set[int]()
    for seed in (None, *range(6)):
        noise(seed)
        with torch.no_grad(), official.running():
            found, counts = pair.root.t2s.infer_panel_batch_infer(**inputs)
        said = found[0][-counts[0] :]
        drawn = pair.voice.generate_tokens(PHONES, seed=seed).ids[1:, 0]
        assert len(drawn) <= STEPS
        kept = drawn[:-1] if drawn[-1] == END else drawn
        assert kept.tolist() == said.tolist(), seed
        lengths.add(len(kept))
        if seed is None:
            with paired_noise(None), torch.no_grad():
                sound = pair.root.vits.decode(said[None, None], text, [spectrum])[0, 0]
            spoken = pair.voice.synthesize(PHONES, seed=None).samples
            assert np.allclose(spoken, sound.numpy(), atol=1e-4)
            assert sound.std() > 0.01
    assert len(lengths) > 2
    assert min(lengths) >= 11
    noise(0)
    with torch.no_grad(), official.running():
        _, counts = pair.root.t2s.infer_panel_batch_infer(**inputs | {"early_stop_num": 14})
    assert counts == [14]  # as upstream counts
    assert pair.voice.contract.until["speech"].longest + 1 == STEPS


def test_noise_makes_the_sound_upstream_makes(
    pair: Pair, official: Official, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The synthesizer's noise is drawn frame by frame, of the deviation that upstream has."""
    said = pair.voice.generate_tokens(PHONES, seed=2).ids[1:, 0]
    said = torch.from_numpy(said[said != END])[None, None]
    stream = np.random.default_rng((2, 0, 3, 0, 0)).standard_normal(1 << 18, np.float32)

    def randn_like(like: Any) -> Any:
        _, channels, frames = like.shape
        return torch.from_numpy(stream[: channels * frames].reshape(frames, channels).T)[None]

    monkeypatch.setattr(torch, "randn_like", randn_like)
    with torch.no_grad():
        spectrum = pair.reference(official)[2]
        sound = pair.root.vits.decode(said, _flat(PHONES), [spectrum])[0, 0].numpy()
    spoken = pair.voice.synthesize(PHONES, seed=2).samples
    assert np.allclose(spoken, sound, atol=1e-4)
    quiet = pair.voice.synthesize(PHONES, seed=None).samples
    assert not np.allclose(spoken[:8_000], quiet[:8_000], atol=1e-2)


def _prompt(voice: Any) -> Any:
    """Return the tokens that a voice takes the recording for."""
    return next(voice.calibration_calls([PHONES], seed=0, part="prefill"))["prompt"]


@pytest.mark.parametrize("scheme", ["int8-dynamic", "int8"])
def test_it_speaks_when_compressed(pair: Pair, tmp_path: Path, scheme: str) -> None:
    """Scores along the same tokens stay near, and equal weights of both graphs lie once."""
    (texts,) = record_feeds(pair.model, ["please call again", "the door was open"], tmp_path)
    calibration = texts if scheme == "int8" else None
    small: Any = load(compress(pair.voice, scheme, calibration=calibration).save(tmp_path / "out"))
    assert small.manifest.counts["MatMul int8/dynamic"] >= 2 * 2 * 4
    assert small.manifest.size_bytes < 0.4 * small.manifest.source.size_bytes
    audio = small.synthesize(PHONES, seed=0)
    assert audio.sample_rate == 32_000
    assert np.isfinite(audio.samples).all()
    assert audio.samples.std() > 0.01
    assert len(audio.samples) % 1280 == 0
    heard = [_prompt(voice) for voice in (pair.voice, small)]
    assert (heard[0] == heard[1]).mean() > 0.9  # the speech encoder computes in FP32
    said = pair.voice.generate_tokens(PHONES, seed=0)
    before, after = (voice.logits(PHONES, said) for voice in (pair.voice, small))
    assert 10 < snr_db(before[:, :, :END], after[:, :, :END]) < 60
    for name in GRAPHS:
        onnxruntime.InferenceSession(tmp_path / "out" / name)


def test_english_words_are_those_of_upstreams_dictionary(pair: Pair, official: Official) -> None:
    symbols = official.checkout.load("text.symbols2").symbols
    spelled = ["HH", "AH0", "L", "OW1", ",", "DH", "EH1", "R", "."]
    ids = f"ids: {' '.join(str(symbols.index(phone)) for phone in spelled)}"
    said = [pair.voice.synthesize(text, seed=1).samples for text in ("Hello; there", ids)]
    assert np.array_equal(*said)
    assert pair.voice.language == "en-us"


def test_phonemes_of_texts_are_recorded(pair: Pair, official: Official, tmp_path: Path) -> None:
    from tests.families.gpt_sovits.conftest import _spell
    from tts_compress.recipes.recipe import read_calibration_set

    (path,) = record_feeds(pair.model, ["please call again"], tmp_path)
    symbols = official.checkout.load("text.symbols2").symbols
    expected = [symbols.index(phone) for phone in _spell("please call again.", "en", "v2")[0]]
    (text,) = read_calibration_set(str(path)).texts
    assert [int(word) for word in text.split()[1:]] == expected


def test_what_has_no_graphs_is_refused(pair: Pair, tmp_path: Path) -> None:
    model: Any = pair.model
    plain = {"options": model.options, "prompt": model.prompt, "spec": "gpt-sovits:a"}
    for changes, message in (
        ({"version": "v4"}, "GPT-SoVITS v4 has a diffusion model and a vocoder"),
        ({"version": "v2Pro"}, "v2Pro has a speaker encoder, .* exported are v1, v2"),
        ({"prompt": Prompt()}, "'gpt-sovits:a' has no recording with its text; put reference.wav"),
        (
            {"options": model.options.changed({"speed_factor": 1.5}, "a test")},
            "speed_factor is 1.5",
        ),
    ):
        voice: Any = SimpleNamespace(**{"version": "v2"} | plain | changes)
        with pytest.raises(ModelError, match=message):
            write_graphs(voice, tmp_path)
    assert not [*tmp_path.iterdir()]

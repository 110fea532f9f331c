"""GPT-SoVITS: a language model of semantic tokens, and a synthesizer that speaks as a recording."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from tts_compress.audio import Audio
from tts_compress.errors import ModelError, TTSCompressError, reason
from tts_compress.models.base import Objective, Speaking, Tokens, check_text
from tts_compress.models.files import write_prompt
from tts_compress.models.gpt_sovits import FAMILY
from tts_compress.models.gpt_sovits.checkpoint import VERSIONS
from tts_compress.models.gpt_sovits.loading import (
    GptSovitsNetworks,
    check_frontend,
    load_networks,
    words_of,
    write_official,
)
from tts_compress.models.gpt_sovits.source import (
    SETTINGS,
    GptSovitsOptions,
    GptSovitsSource,
    check_recording,
    find_source,
)
from tts_compress.models.torch_model import TorchFamilyModel
from tts_compress.models.torch_noise import paired_noise
from tts_compress.torch.devices import device_of
from tts_compress.torch.layers.module_surgery import intercepted


class GptSovitsSpeech:
    """An official `TTS` object that speaks as a recording does.

    The recording is processed before any noise is chosen: the speech encoder draws random numbers
    without using them, the first time only, and what is drawn after them would differ. Without the
    recording's text the language model begins without an example.
    """

    def __init__(
        self,
        loaded: GptSovitsNetworks,
        options: GptSovitsOptions,
        recording: Path,
        spoken: str | None,
    ) -> None:
        self._official = loaded.official
        self._words = str(loaded.tokenizer().name_or_path)
        self.tts = assemble(loaded)
        reference = str(recording.resolve())
        stated = {"ref_audio_path": reference, "prompt_text": spoken or "", "batch_size": 1}
        self._inputs = asdict(options) | stated
        try:
            with self._official.running():
                self.tts.set_ref_audio(reference)
        # Upstream's code and its text frontends fail in ways of their own.
        except Exception as error:
            raise ModelError(f"cannot speak by '{recording}': {reason(error)}") from error

    def speak(self, text: str) -> Audio:
        """Return the audio of the official `run`, with the noise that torch draws."""
        pieces = self._run(text)
        samples = np.concatenate([wave for _, wave in pieces]).astype(np.float32)
        if not samples.any():
            raise ModelError(f"GPT-SoVITS speaks only silence for {text[:40]!r}")
        return Audio(samples=samples / np.float32(32768), sample_rate=int(pieces[0][0]))

    def tokens(self, text: str) -> Tokens:
        """Return the semantic tokens that `speak` would make audio of."""
        decoder = self.tts.t2s_model.model
        drawn: list[Tensor] = []

        def infer(method: Any, *arguments: Any, **keywords: Any) -> Any:
            segments, counts = method(*arguments, **keywords)
            drawn.extend(ids[-count:] for ids, count in zip(segments, counts, strict=True))
            return segments, counts

        # `run` takes the method from the object anew each time.
        with intercepted(decoder, "infer_panel_batch_infer", infer):
            self.speak(text)
        return join_segments(drawn, decoder.EOS)

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores from which each of `tokens.ids[1:]` would be drawn, `[S, 1, V]`."""
        segments = self.segments(text)
        prompted = self._inputs["prompt_text"]
        prompt = self.tts.prompt_cache["prompt_semantic"] if prompted else None
        return score_tokens(self.tts.t2s_model.model, segments, prompt, tokens)

    def segments(self, text: str) -> list[tuple[Tensor, Tensor]]:
        """Return phonemes `[N]` and text features `[1024, N]` of each segment, as spoken."""
        batches: list[Any] = []

        def take(to_batch: Any, *arguments: Any, **keywords: Any) -> Any:
            batches.extend(to_batch(*arguments, **keywords)[0])
            return [], []  # nothing is spoken

        with intercepted(self.tts, "to_batch", take):
            self._run(text)
        return [(batch["all_phones"][0], batch["all_bert_features"][0]) for batch in batches]

    def prompt(self) -> tuple[list[int], Tensor]:
        """Return phonemes and text features `[1024, P]` of the recording's text."""
        self.segments(self._inputs["prompt_text"])
        cache = self.tts.prompt_cache
        return list(cache["phones"]), cache["bert_features"]

    def _run(self, text: str) -> list[tuple[int, Any]]:
        """Return the sample rate and the waves of the official `run`, which seeds nothing here."""
        check_text(text)
        official = self._official
        unseeded = intercepted(official.inference, "set_seed", lambda *_: None)
        checked = intercepted(official.text, "clean_text", self._clean_text)
        try:
            with official.running(), unseeded, checked:
                # All of it: after an error `run` yields silence first, and raises it then.
                return list(self.tts.run(self._inputs | {"text": text}))
        except TTSCompressError:
            raise
        except Exception as error:
            raise ModelError(f"GPT-SoVITS cannot speak {text[:40]!r}: {reason(error)}") from error

    def _clean_text(self, method: Any, text: str, language: str, version: str) -> Any:
        """Return phonemes by upstream's function, which imports the frontend of a language."""
        check_frontend(self._official.checkout.root, language, version)
        with words_of(self._words):
            return method(text, language, version)


def assemble(loaded: GptSovitsNetworks) -> Any:
    """Return an official `TTS` object that speaks with loaded networks, where these lie.

    Upstream's constructor reads pickles and writes into the clone; and where speaking fails, its
    `run` yields a second of silence, throws the networks away and reads the files again. The object
    made here is of a subclass whose loaders read no files: they put back the networks it holds.
    Everything else of it is upstream's, and runs unchanged.
    """
    official, settings = loaded.official, loaded.settings
    root: Any = loaded.root
    inference, version = official.inference, VERSIONS[settings.version]
    # Upstream loads the first two in wrappers, of which inference uses no more than `model`.
    held: dict[str, Any] = {
        "t2s_model": nn.ModuleDict({"model": root.t2s}),
        "cnhuhbert_model": nn.ModuleDict({"model": root.hubert}),
        "vits_model": root.vits,
        "bert_tokenizer": loaded.tokenizer(),
        "bert_model": root.bert,
        "is_v2pro": version.speaker is not None,
    }
    if version.vocoder_configs:
        vocoder_configs = dict(version.vocoder_configs, overlapped_len=12)
        held |= {"vocoder": root.vocoder, "vocoder_configs": vocoder_configs}
    if version.speaker:
        held["sv_model"] = inference.SV.__new__(inference.SV)
        held["sv_model"].embedding_model, held["sv_model"].is_half = root.sv, False

    def put_back(tts: Any, *_: object) -> None:
        for name, part in held.items():
            setattr(tts, name, part)
        configs, data = tts.configs, settings.sovits["data"]
        for name in ("filter_length", "sampling_rate", "hop_length", "win_length", "n_speakers"):
            setattr(configs, name, data[name])
        configs.segment_size = settings.sovits["train"]["segment_size"]
        configs.max_sec = settings.t2s["data"]["max_sec"]
        configs.use_vocoder = version.vocoder is not None
        configs.update_version(settings.version)
        with torch.no_grad():  # streams are cut where tokens are like that of silence
            tokens = torch.arange(root.t2s.vocab_size, device=device_of(root))
            table = root.t2s.ar_audio_embedding(tokens)
            mute = table[configs.mute_tokens[settings.version]].unsqueeze(0)
            configs.mute_emb_sim_matrix = functional.cosine_similarity(mute, table, dim=-1)

    parts = ("t2s_weights", "vits_weights", "bert_weights", "cnhuhbert_weights")
    loaders = ["_init_models", "init_vocoder", "init_sv_model", *(f"init_{name}" for name in parts)]
    kind = type("TTS", (inference.TTS,), dict.fromkeys(loaders, put_back))
    # Any path that exists: upstream warns of others, and nothing is read from it.
    paths = ("t2s_weights_path", "vits_weights_path", "bert_base_path", "cnhuhbert_base_path")
    stated = {"device": str(device_of(root)), "is_half": False, "version": settings.version}
    with official.running():
        return kind({"custom": dict.fromkeys(paths, str(official.checkout.root)) | stated})


def join_segments(drawn: Sequence[Tensor], end: int) -> Tokens:
    """Return the tokens of all segments as one sequence.

    A long text is spoken in segments, each of which begins anew with the prompt. In the sequence
    the token that ends speech stands behind each of them, and before the first.
    """
    ids = [end]
    for segment in drawn:
        ids += [*segment.tolist(), end]
    joined = np.array(ids, np.int64)[:, None]
    return Tokens(ids=joined, chosen=joined[1:] != end)


def score_tokens(
    decoder: Any, segments: Sequence[tuple[Tensor, Tensor]], prompt: Tensor | None, tokens: Tokens
) -> npt.NDArray[np.float32]:
    """Return the scores that an opened decoder gives the tokens of `join_segments`, `[S, 1, V]`.

    Each segment follows the prompt's tokens `[T]`, where there are any.
    """
    ids, end, limit = tokens.ids, decoder.EOS, int(decoder.vocab_size)
    drawn: list[Tensor] = []
    if ids.ndim == 2 and ids.shape[1] == 1 and len(ids) > 1 and set(ids[[0, -1], 0]) == {end}:
        flat = torch.from_numpy(np.ascontiguousarray(ids[:, 0]))
        ends = (flat == end).nonzero().flatten().tolist()
        drawn = [flat[before + 1 : after] for before, after in pairwise(ends)]
    if len(drawn) != len(segments) or not all(((s >= 0) & (s < limit)).all() for s in drawn):
        raise ModelError(
            f"tokens of shape {ids.shape} in {len(drawn)} segments are not ones of this "
            f"model, which speaks the text in {len(segments)} and has tokens from 0 to {limit - 1}"
        )
    device = device_of(decoder)
    before = torch.zeros(0, dtype=torch.int64) if prompt is None else prompt.long()
    scores = []
    with torch.no_grad():
        for (phones, bert), part in zip(segments, drawn, strict=True):
            sequence = torch.cat([before.to(device), part.to(device)]).unsqueeze(0)
            logits = decoder(phones.unsqueeze(0), bert.unsqueeze(0), sequence)
            scores.append(logits[0, len(before) :].float().cpu())
    return np.asarray(torch.cat(scores).unsqueeze(1), np.float32)


ROLES = {
    "bert": "text encoder (Chinese)",
    "hubert": "speech encoder (recording)",
    "vits.ssl_proj": "projection of the recording to tokens",
    "t2s": "speech language model",
    "sv": "speaker encoder",
    "vits.ref_enc": "style encoder",
    "vits.sv_emb": "projection of the speaker",
    "vits.ge_to512": "projection of the style",
    "vits.enc_p": "prior encoder",
    "vits.flow": "flow",
    "vits.dec": "decoder",
    "vits.bridge": "projection of the prior",
    "vits.wns1": "condition encoder",
    "vits.cfm": "diffusion estimator",
    "vocoder": "vocoder",
}
"""Roles by component, in the order data flows; a version has some of them."""

_NAMED_CALLS = {  # methods that upstream calls on components, by component
    "t2s": ("t2s.infer_panel_batch_infer", "t2s.infer_panel_naive_batched"),
    "vits.cfm": ("vits.cfm.inference",),
    "sv": ("sv.forward3",),
}


class GptSovitsModel(TorchFamilyModel[GptSovitsSource, GptSovitsOptions, GptSovitsNetworks]):
    """A GPT-SoVITS model, from its files or compressed in memory.

    It is opened from upstream's `tts_infer.yaml`, from the paths of a T2S and a SoVITS model with a
    comma between, or from an artifact's folder; `?text_lang=en&top_k=5` behind it sets
    `GptSovitsOptions`. A `reference.wav` and `reference.txt` beside the configuration or the T2S
    model are the recording to speak by and its text.
    """

    family = FAMILY.name
    example = "text_lang=en&top_k=5"
    find = find_source
    read = load_networks
    check_recording = check_recording
    roles = ROLES

    @property
    def version(self) -> str:
        """`v1`, `v2`, `v2Pro`, `v2ProPlus`, `v3` or `v4`."""
        return self.source.version

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return self.source.sample_rate

    @property
    def speaking(self) -> Speaking:
        """The recording, and the languages, of which upstream detects that of a text."""
        return Speaking(languages=self.options.languages(self.version), prompt=self.prompt)

    def speaking_as(self, speaking: Speaking) -> Self:
        """Return this model taking all texts for ones of a language, or with another recording."""
        changed, language, present = super().speaking_as(speaking), speaking.language, self.speaking
        if language in (None, present.language):
            return changed
        if language not in present.languages:
            accepted = ", ".join(map(repr, present.languages))
            raise ModelError(f"{self.spec!r} does not speak {language!r}; accepted: {accepted}")
        return changed.with_options(replace(self.options, text_lang=language))

    @property
    def tts(self) -> Any:
        """The official `TTS` object, whose `run` works as ever; it needs a recording."""
        return self._speech().tts

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        network, audio = self.source.t2s, self.prompt.audio
        chosen = {n: v for n, v in self.options.stated().items() if n != "text_lang"}
        return {
            "version": self.version,
            "sample rate": f"{self.sample_rate} Hz",
            "language model": f"{network.get('n_layer')} layers of width "
            f"{network.get('hidden_dim')}, {network.get('vocab_size')} tokens",
            "language": self.options.text_lang,
            "options": ", ".join(f"{n} {v}" for n, v in chosen.items()) or "upstream's defaults",
            "recording": "none" if audio is None else audio.name,
        }

    def objectives(self) -> tuple[Objective, ...]:
        """Return the distillation objectives, in the order data flows.

        The recording's encoders, `hubert` and `vits.ref_enc`, are called when a prompt is set.
        """
        # It returns scores, then the states before, between and behind its layers; upstream takes
        # the third from the end.
        used = max(int(self.loaded.settings.bert.get("num_hidden_layers", 0)) - 1, 0)
        first = (0,)  # the rest is the state of a next call
        vits = (
            # It returns its input, mean and log deviation of the prior, and masks.
            Objective(module="vits.enc_p", loss="mse", outputs=(1, 2), log_deviation=1),
            Objective(module="vits.flow", loss="mse"),
            Objective(module="vits.dec", loss="waveform"),
        )
        flow_matching = (
            Objective(module="vits.enc_p", loss="mse", outputs=first),
            Objective(module="vits.wns1", loss="mse", outputs=first),
            Objective(module="vits.cfm.estimator", loss="mse", outputs=first),
            Objective(module="vocoder", loss="waveform"),
        )
        return (
            Objective(module="bert", loss="mse", outputs=(used,)),
            Objective(module="hubert", loss="mse", outputs=first),
            Objective(module="vits.ref_enc", loss="mse"),
            # It scores whole utterances when it is called; step by step its methods are.
            Objective(module="t2s", loss="kl"),
            *(flow_matching if VERSIONS[self.version].vocoder else vits),
        )

    def named_calls(self) -> Mapping[str, tuple[str, ...]]:
        """Return the methods that upstream calls on components that it does not call as modules."""
        there = self.components()
        return {name: methods for name, methods in _NAMED_CALLS.items() if name in there}

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak as `synthesize` does and return the semantic tokens."""
        speech = self._speech()
        with paired_noise(seed):
            return speech.tokens(text)

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the given tokens before it, shape `[S, 1, V]`."""
        return self._speech().logits(text, tokens)

    def prompt_text(self) -> tuple[list[int], Tensor]:
        """Return phonemes and text features `[1024, P]` of the recording's text, which it needs."""
        return self._speech().prompt()

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write an artifact, or by `save_official` a model that was not compressed."""
        if self.manifest is None:
            return self.save_official(directory, force=force)
        return super().save(directory, force=force)

    def save_official(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write the T2S and the SoVITS model as upstream's training does, in FP16, all or nothing.

        Upstream's own programs load them. Also for a model compressed by `fp16`; others have more
        than these files can hold.
        """
        target = Path(directory)
        write_official(self.loaded, self.source, self.prompt, target, force=force)
        return target

    def _write(self, directory: Path) -> None:
        loaded = self.loaded
        settings = replace(loaded.settings, options=self.options.stated())
        (directory / SETTINGS).write_text(settings.to_json(), encoding="utf-8")
        loaded.tokenizer().save_pretrained(directory)
        write_prompt(self.prompt, directory)

    def _speech(self) -> GptSovitsSpeech:
        return self._cached_speech

    @cached_property
    def _cached_speech(self) -> GptSovitsSpeech:
        """The runtime, which processes the recording once."""
        recording = self._recording()
        return GptSovitsSpeech(self.loaded, self.options, recording, self.prompt.text)

"""Speaking by the official `TTS` object's own `run`, and the tokens of its language model."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from tts_compress.audio import Audio
from tts_compress.errors import ModelError, reason
from tts_compress.models.base import Prompt, check_text
from tts_compress.models.files import REFERENCE, REFERENCE_TEXT, check_duration
from tts_compress.models.gpt_sovits.source import GptSovitsOptions, GptSovitsSettings
from tts_compress.models.gpt_sovits.upstream import VERSIONS, Official
from tts_compress.models.interception import intercepted
from tts_compress.models.language_model import Tokens


class GptSovitsSpeech:
    """An official `TTS` object that speaks as a recording does.

    The recording is processed before any noise is chosen: the speech encoder draws random numbers
    without using them, the first time only, and what is drawn after them would differ. Without the
    recording's text the language model begins without an example.
    """

    def __init__(
        self, official: Official, tts: Any, options: GptSovitsOptions, prompt: Prompt
    ) -> None:
        assert prompt.audio is not None, "there is a recording"
        self._official = official
        self.tts = tts
        self._options = options
        given = str(prompt.audio.resolve())
        self._prompt = {"ref_audio_path": given, "prompt_text": prompt.text or ""}
        try:
            with official.running():
                tts.set_ref_audio(given)
                if prompt.text:
                    self._process_prompt_text(prompt.text)
        # Upstream's code and its text frontends fail in ways of their own.
        except Exception as error:
            raise ModelError(f"cannot speak by '{prompt.audio}': {reason(error)}") from error

    def speak(self, text: str) -> Audio:
        """Return the audio of the official `run`, with the noise that torch draws."""
        check_text(text)
        inputs = self._prompt | asdict(self._options) | {"text": text, "batch_size": 1}
        try:
            with self._official.running():
                # All of it: after an error `run` yields silence first, and raises it then.
                pieces = list(self.tts.run(inputs))
        except Exception as error:
            raise ModelError(f"GPT-SoVITS cannot speak {text[:40]!r}: {reason(error)}") from error
        samples = np.concatenate([wave for _, wave in pieces]).astype(np.float32)
        if not samples.any():
            raise ModelError(f"GPT-SoVITS speaks only silence for {text[:40]!r}")
        return Audio(samples=samples / np.float32(32768), sample_rate=int(pieces[0][0]))

    def tokens(self, text: str) -> Tokens:
        """Return the semantic tokens that `speak` would make audio of."""
        decoder = self.tts.t2s_model.model
        drawn: list[Tensor] = []

        def infer(method: Any, *arguments: Any, **keywords: Any) -> Any:
            found, counts = method(*arguments, **keywords)
            drawn.extend(ids[-count:] for ids, count in zip(found, counts, strict=True))
            return found, counts

        # `run` takes the method from the object anew each time.
        with intercepted(decoder, "infer_panel_batch_infer", infer):
            self.speak(text)
        return join_segments(drawn, decoder.EOS)

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores from which each of `tokens.ids[1:]` would be drawn, `[S, 1, V]`."""
        prompt = self.tts.prompt_cache["prompt_semantic"] if self._prompt["prompt_text"] else None
        return score_tokens(self.tts.t2s_model.model, self.segments(text), prompt, tokens)

    def segments(self, text: str) -> list[tuple[Tensor, Tensor]]:
        """Return phonemes `[N]` and text features `[1024, N]` of each segment, as spoken."""
        check_text(text)
        tts, options = self.tts, self._options
        try:
            with self._official.running():
                found = tts.text_preprocessor.preprocess(
                    text, options.text_lang, options.text_split_method, tts.configs.version
                )
                prompt = tts.prompt_cache if self._prompt["prompt_text"] else None
                # `run` begins with the shortest, except where it prints that it does not.
                by_length = options.speed_factor == 1 and not tts.configs.use_vocoder
                batches, _ = tts.to_batch(
                    found, prompt_data=prompt, batch_size=1, split_bucket=by_length
                )
        except Exception as error:
            raise ModelError(f"GPT-SoVITS cannot read {text[:40]!r}: {reason(error)}") from error
        return [(batch["all_phones"][0], batch["all_bert_features"][0]) for batch in batches]

    def _process_prompt_text(self, text: str) -> None:
        language = self._options.prompt_lang
        stripped = text.strip("\n")
        if stripped[-1] not in self._official.inference.splits:
            stripped += "." if language == "en" else "。"
        phones, bert, norm_text = self.tts.text_preprocessor.segment_and_extract_feature_for_text(
            stripped, language, self.tts.configs.version
        )
        self.tts.prompt_cache |= {
            "prompt_text": stripped,
            "prompt_lang": language,
            "phones": phones,
            "bert_features": bert,
            "norm_text": norm_text,
        }


def assemble(official: Official, settings: GptSovitsSettings, root: Any, tokenizer: Any) -> Any:
    """Return an official `TTS` object that speaks with the networks of a root, on the processor.

    Upstream's constructor reads pickles and writes into the clone; and where speaking fails, its
    `run` yields a second of silence, throws the networks away and reads the files again. The object
    made here is of a subclass whose loaders read no files: they put back the networks it holds.
    Everything else of it is upstream's, and runs unchanged.
    """
    inference, version = official.inference, VERSIONS[settings.version]
    lightning = inference.Text2SemanticLightningModule
    held: dict[str, Any] = {
        "t2s_model": _wrap(lightning, model=root.t2s, config=settings.t2s),
        "vits_model": root.vits,
        "bert_tokenizer": tokenizer,
        "bert_model": root.bert,
        # The rest of upstream's wrapper is not used in inference.
        "cnhuhbert_model": _wrap(inference.CNHubert, model=root.hubert),
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
        _configure(tts.configs, settings, root)

    parts = ("t2s_weights", "vits_weights", "bert_weights", "cnhuhbert_weights")
    loaders = ["_init_models", "init_vocoder", "init_sv_model", *(f"init_{name}" for name in parts)]
    kind = type("TTS", (inference.TTS,), dict.fromkeys(loaders, put_back))
    # Any path that exists: upstream warns of others, and nothing is read from it.
    paths = ("t2s_weights_path", "vits_weights_path", "bert_base_path", "cnhuhbert_base_path")
    stated = {"device": "cpu", "is_half": False, "version": settings.version}
    with official.running():
        return kind({"custom": dict.fromkeys(paths, str(official.checkout.root)) | stated})


def check_recording(path: Path) -> None:
    """Refuse a recording of a length that upstream does not take."""
    check_duration(path, (3.0, 10.0))


def write_prompt(prompt: Prompt, directory: Path) -> None:
    """Write the files that `find_prompt` finds; what the prompt lacks is left out."""
    if prompt.audio is not None:
        check_recording(prompt.audio)
        shutil.copyfile(prompt.audio, directory / REFERENCE)
    if prompt.text is not None:
        (directory / REFERENCE_TEXT).write_text(f"{prompt.text}\n", encoding="utf-8")


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
    import torch

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
    before = torch.zeros(0, dtype=torch.int64) if prompt is None else prompt.long()
    scores = []
    with torch.no_grad():
        for (phones, bert), part in zip(segments, drawn, strict=True):
            given = torch.cat([before, part]).unsqueeze(0)
            found = decoder(phones.unsqueeze(0), bert.unsqueeze(0), given)
            scores.append(found[0, len(before) :].float())
    return np.asarray(torch.cat(scores).unsqueeze(1), np.float32)


def _wrap(kind: Any, **contents: Any) -> nn.Module:
    """Return one of upstream's modules with these contents; its constructor would read files."""
    made: nn.Module = kind.__new__(kind)
    super(kind, made).__init__()
    for name, part in contents.items():
        setattr(made, name, part)
    return made.eval()


def _configure(configs: Any, settings: GptSovitsSettings, root: Any) -> None:
    """Set what upstream's loaders read from a model's files into its configuration."""
    import torch

    data = settings.sovits["data"]
    for name in ("filter_length", "sampling_rate", "hop_length", "win_length", "n_speakers"):
        setattr(configs, name, data[name])
    configs.segment_size = settings.sovits["train"]["segment_size"]
    configs.max_sec = settings.t2s["data"]["max_sec"]
    configs.use_vocoder = VERSIONS[settings.version].vocoder is not None
    configs.update_version(settings.version)
    with torch.no_grad():  # streams are cut where tokens are like that of silence
        table = root.t2s.ar_audio_embedding(torch.arange(root.t2s.vocab_size))
        mute = table[configs.mute_tokens[settings.version]].unsqueeze(0)
        configs.mute_emb_sim_matrix = torch.nn.functional.cosine_similarity(mute, table, dim=-1)

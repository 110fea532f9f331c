"""ONNX voices that are language models: what they predict, step by step, along given speech."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.artifact import Manifest
from tts_compress.errors import ModelError
from tts_compress.models.base import Reading, Tokens
from tts_compress.models.contract.calling import Call
from tts_compress.models.contract.reading import leading_graph
from tts_compress.models.contract.schema import Until
from tts_compress.models.onnx_voice import OnnxVoice


def _end_of(voice: OnnxVoice) -> Until:
    """Return the decision of a voice that ends its speech."""
    return next(until for until in voice.contract.until.values() if until.output is not None)


class TokenVoice(OnnxVoice):
    """A voice that draws tokens until one that ends its speech."""

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak a text and return its tokens; the first row is of zeros."""
        rows, until = list[npt.NDArray[np.int64]](), _end_of(self)
        for call in self._calls(text, seed):
            self._hear(call, {str(until.output): rows.append})
        ids = np.concatenate([np.zeros_like(rows[0]), *rows])
        ends = ids[1:, :1] == until.token
        return Tokens(ids=ids, chosen=~ends.repeat(ids.shape[1], 1), stop=until.token)

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after another model's tokens."""
        steps, scores = iter(tokens.ids[1:, None]), list[npt.NDArray[np.float32]]()
        names = {s.logits for part in self.caller.parts for s in part.table.sample.values()}
        latest: list[Any] = [None]

        def told(drawn: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            rows = np.reshape(latest[-1], (-1, latest[-1].shape[-1]))[-drawn.shape[1] :]
            step = next(steps, np.empty((0, 0), np.int64))
            if step.shape != drawn.shape or not ((step >= 0) & (step < rows.shape[1])).all():
                raise ModelError(f"the tokens are not ones of {text[:40]!r}")
            scores.append(rows.astype(np.float32))
            return step

        heard = dict.fromkeys(names, latest.append) | {str(_end_of(self).output): told}
        for call in self._calls(text, None):
            self._hear(call, heard)
        if next(steps, None) is not None:
            raise ModelError(f"the tokens are not ones of {text[:40]!r}")
        return np.stack(scores)


class LatentVoice(OnnxVoice):
    """A voice that writes latents until a number says that its speech ends."""

    def generate_latents(self, text: str, *, seed: int | None) -> npt.NDArray[np.float32]:
        """Speak a text and return the latents that it read, a row of NaN before each part."""
        parts = [self._read(call, None) for call in self._calls(text, seed)]
        return np.concatenate([np.vstack([m[:1] * np.nan, m])[: len(s)] for m, s in parts])

    def read_latents(self, text: str, latents: npt.NDArray[np.float32]) -> Reading:
        """Return the answers to latents that another model read."""
        starts = np.flatnonzero(np.isnan(latents).any(-1)) if latents.ndim == 2 else np.empty(0)
        parts = iter(np.split(latents, starts[1:].astype(int)) if len(starts) else [])
        read = [self._read(call, next(parts, latents[:0])) for call in self._calls(text, None)]
        if sum(len(stops) for _, stops in read) != len(latents) or next(parts, None) is not None:
            raise ModelError(f"the latents are not ones of {text[:40]!r}")
        # The round that ends speech may make no latent.
        answers = [np.resize(np.vstack([m, 0 * m[:1]]), (len(s), m.shape[1])) for m, s in read]
        stops = np.concatenate([stops for _, stops in read])
        threshold = float(_end_of(self).above or 0)
        return Reading(latents=np.concatenate(answers), stop=stops, threshold=threshold)

    def _read(
        self, call: Call, rows: npt.NDArray[np.float32] | None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the latents that were made, shape `[S, D]`, and the log-odds of the end, `[S]`.

        Args:
            call: What is spoken.
            rows: What is read in place of the latents, the first row being the beginning; None
                for the voice's own.
        """
        written, stops, until = list[Any](), list[float](), _end_of(self)

        def ending(value: Any) -> Any:
            stops.append(float(np.reshape(value, -1)[0]))
            ends = rows is not None and len(stops) >= max(len(rows) - until.after, 1)
            return None if rows is None else np.full_like(value, np.inf if ends else -np.inf)

        def latent(value: Any) -> Any:
            written.append(np.reshape(value, -1))
            if rows is None or len(stops) >= len(rows):
                return None
            return np.reshape(rows[len(stops)], value.shape)

        self._hear(call, {str(until.output): ending, str(until.latent): latent})
        latents = (
            np.stack(written) if written else np.zeros((1, 1 if rows is None else rows.shape[1]))
        )
        return latents.astype(np.float32), np.array(stops, np.float32)


def _kind(voice: OnnxVoice) -> type[OnnxVoice]:
    """Return the class of a voice by what ends its speech."""
    ends = [until for until in voice.contract.until.values() if until.output is not None]
    drawn = {name for table in (voice.contract, *voice.contract.then) for name in table.sample}
    if len(ends) == 1 and ends[0].token is not None and drawn == {ends[0].output}:
        return TokenVoice
    return LatentVoice if len(ends) == 1 and ends[0].latent is not None else OnnxVoice


def open_voice(location: str, spec: str, manifest: Manifest | None) -> OnnxVoice:
    """Open a graph with its contract, or an artifact of one."""
    path = Path(location)
    if manifest is not None and path.is_dir():
        path = leading_graph(path, manifest.files)
    voice = OnnxVoice(path, spec=spec, manifest=manifest)
    kind = _kind(voice)
    return voice if kind is OnnxVoice else kind(path, spec=spec, manifest=manifest)

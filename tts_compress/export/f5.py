"""F5-TTS as three graphs, with the inputs and outputs that its users' runtimes have.

The first one prepares recording and text; the second is one step of the diffusion; the third is the
vocoder, Vocos, from mel to audio.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.onnx.operators import shape_as_tensor

from tts_compress.errors import ArtifactError, ModelError
from tts_compress.export.f5_step import F5GraphOptions, Step, schedule
from tts_compress.export.fourier import FrameSettings, InverseFourier, LogMel
from tts_compress.export.graphs import copy_shell, observed, write_graph
from tts_compress.models.base import TorchModel
from tts_compress.models.feeds import feeds_writer
from tts_compress.onnx.session import Feeds
from tts_compress.torch.tracing import Axes

_LOUDEST = 100.0
"""Upper limit of magnitudes in Vocos' own head."""

_EXAMPLE_FRAMES = 24


class VocosGraph(nn.Module):
    """A Vocos vocoder without complex numbers."""

    def __init__(self, vocos: nn.Module) -> None:
        super().__init__()
        transform = transform_of(vocos)
        shell: Any = copy_shell(vocos)
        if getattr(shell.backbone, "adanorm", False):
            raise ModelError("a Vocos that is told a bandwidth cannot be exported; give a mel one")
        self.backbone = shell.backbone
        self.out = shell.head.out
        size, hop = int(transform.n_fft), int(transform.hop_length)
        if transform.win_length != size:
            raise ModelError(
                f"the window of {transform.win_length} samples is not as long as the transform "
                f"of {size}; such a Vocos cannot be exported"
            )
        trim = size // 2 if transform.padding == "center" else (size - hop) // 2
        self.inverse = InverseFourier(transform.window, hop, trim)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """Return audio (B, samples) of mel (B, C, T)."""
        magnitudes, phases = self.out(self.backbone(mel)).chunk(2, dim=2)
        magnitudes = torch.clamp(torch.exp(magnitudes), max=_LOUDEST)
        audio: torch.Tensor = self.inverse(
            magnitudes * torch.cos(phases), magnitudes * torch.sin(phases)
        )
        return audio


def transform_of(vocos: nn.Module) -> Any:
    """Return the official inverse transform, which knows the sizes of frames."""
    transform = getattr(getattr(vocos, "head", None), "istft", None)
    if transform is None or not hasattr(vocos, "backbone"):
        raise ModelError(
            f"{type(vocos).__name__} is no Vocos with an ISTFT head; only that can be exported"
        )
    return transform


def export_vocos(vocos: nn.Module, path: Path | str) -> Path:
    """Write a Vocos vocoder as a graph `mel` (B, C, T) → `audio` (B, samples), FP32."""
    module = VocosGraph(vocos).eval()
    example = torch.zeros(1, module.backbone.embed.in_channels, _EXAMPLE_FRAMES)
    inputs, outputs = {"mel": {0: "batch", 2: "frames"}}, {"audio": {0: "batch", 1: "samples"}}
    return write_graph(module, (example,), inputs, outputs, Path(path))


_PARTS = ("rotary_embed", "time_embed", "text_embed", "input_embed", "transformer_blocks")
"""Attributes by which the DiT is recognized."""

_ROTATION_BASE = 10_000.0
_FULL_SCALE = 32_768
"""Largest value of 16-bit samples."""


class TextEncoder(nn.Module):
    """The embedding of the text, for lengths that are known when the graph runs."""

    def __init__(self, official: nn.Module) -> None:
        super().__init__()
        shell: Any = copy_shell(official)
        if shell.average_upsampling:
            raise ModelError("an F5-TTS that spreads its text evenly in time cannot be exported")
        self.text_embed = shell.text_embed
        self.mask_padding = bool(shell.mask_padding)
        self.text_blocks = shell.text_blocks if shell.extra_modeling else nn.ModuleList()
        self.modelled = bool(shell.extra_modeling)
        width = self.text_embed.embedding_dim
        powers = torch.arange(0, width, 2)[: width // 2].float() / width
        self.rates = nn.Buffer(1.0 / (_ROTATION_BASE**powers), persistent=False)
        if self.modelled:
            ours = self.positions(torch.arange(len(shell.freqs_cis)))
            if not torch.allclose(shell.freqs_cis, ours, atol=1e-4):
                raise ModelError("this F5-TTS gives its text other positions than those known here")

    def positions(self, times: torch.Tensor) -> torch.Tensor:
        """Return the positional embedding at times (n,): cosines, then sines (n, D)."""
        angles = torch.outer(times.to(self.rates.dtype), self.rates)
        return torch.cat([angles.cos(), angles.sin()], dim=-1)

    def forward(self, ids: torch.Tensor, times: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the embedding (1, n, D) of a text.

        Args:
            ids: Symbols (1, n); 0 is padding.
            times: Positions (n,).
            mask: True (1, n) where there is text, also where its symbols are withheld.
        """
        text: torch.Tensor = self.text_embed(ids)
        if not self.modelled:
            return text
        text = text + self.positions(times)
        spoken = mask[..., None].to(text.dtype)
        if self.mask_padding:
            text = text * spoken
        for block in self.text_blocks:
            text = block(text)
            if self.mask_padding:
                text = text * spoken
        return text


class Conditioning(nn.Module):
    """Positions and conditions of the transformer, the same at every step."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        for part in _PARTS:
            if not hasattr(transformer, part):
                kind = type(transformer).__name__
                raise ModelError(f"{kind} has no {part}; only F5-TTS' DiT can be exported")
        rotary = transformer.rotary_embed
        if rotary.scale is not None:
            raise ModelError("an F5-TTS with scaled rotary positions cannot be exported")
        self.text_embed = TextEncoder(transformer.text_embed)
        rates = rotary.inv_freq.detach() / rotary.interpolation_factor
        self.rates = nn.Buffer(rates, persistent=False)

    def conditions(
        self, mel: torch.Tensor, text_ids: torch.Tensor, duration: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return cosines and sines (1, n, head), and the conditions (1, n, bands + D).

        Args:
            mel: The recording (1, T, bands); zeros follow it.
            text_ids: Symbols (1, N).
            duration: n, a tensor without axes.

        Returns:
            The two tensors of rotary positions, the condition with recording and text, and the
            one without.
        """
        length: Any = duration  # a tensor, so that the tracer follows it
        times = torch.arange(length)
        mel = _fitted(mel, times)
        ids = _fitted((text_ids.long() + 1)[..., None], times)[..., 0]
        angles = torch.outer(times.to(self.rates.dtype), self.rates)
        angles = torch.stack([angles, angles], dim=-1).flatten(1)[None]
        text = self.text_embed(ids, times, ids != 0)
        no_text = self.text_embed(torch.zeros_like(ids), times, ids != 0)
        conditions = [(mel, text), (torch.zeros_like(mel), no_text)]
        return (angles.cos(), angles.sin(), *(torch.cat(pair, dim=-1) for pair in conditions))


class Preprocess(Conditioning):
    """The first graph."""

    def __init__(self, transformer: Any, frames: FrameSettings) -> None:
        super().__init__(transformer)
        self.hop = frames.hop_length
        self.mel = LogMel(frames)

    def forward(
        self, audio: torch.Tensor, text_ids: torch.Tensor, max_duration: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return noise, positions, conditions and the recording's length.

        Args:
            audio: The recording (1, 1, L), int16.
            text_ids: Symbols (1, N), int32: those of the recording, then those to speak.
            max_duration: Frames of recording and speech together (1,), int64.
        """
        mel = self.mel(audio[:, 0].float() / _FULL_SCALE)
        # At least one frame is spoken, as upstream does.
        least = torch.maximum(shape_as_tensor(mel)[1], shape_as_tensor(text_ids)[1]) + 1
        duration = torch.maximum(max_duration[0], least)
        cosines, sines, condition, unconditioned = self.conditions(mel, text_ids, duration)
        noise = torch.randn_like(condition[:, :, : mel.shape[2]])
        samples = shape_as_tensor(audio)[2:]
        return noise, cosines, sines, condition, unconditioned, samples // self.hop


def _fitted(values: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Return values (1, T, C) at times (n,), with zeros after their end."""
    length = shape_as_tensor(values)[1]
    repeated = values[:, torch.minimum(times, length - 1)]
    within = (times < length).to(values.dtype)
    return repeated * within[None, :, None]


F5_GRAPHS = ("preprocess.onnx", "transformer.onnx", "decode.onnx")
"""Files of the graphs, in the order in which they run."""

_TIME = {1: "max_duration"}
_CONDITIONS = ("rope_cos", "rope_sin", "cat_mel_text", "cat_mel_text_drop")
_SOLVER = ("nfe_step", "cfg_strength", "sway_sampling_coef")
"""Options of the model that are constants of the graphs."""

_EXAMPLE_SECONDS = 0.5
_EXAMPLE_SYMBOLS = 11

_VOCODER = "vocoder.onnx"
"""The vocoder alone, for the official object; the third graph also removes the recording."""

_RECORDED_STEPS = 4
"""Recorded steps of each part of a text: neighbouring steps hardly differ."""


class Decode(nn.Module):
    """The third graph."""

    def __init__(self, vocos: nn.Module) -> None:
        super().__init__()
        self.vocoder = VocosGraph(vocos)

    def forward(self, denoised: torch.Tensor, ref_signal_len: torch.Tensor) -> torch.Tensor:
        """Return audio (1, 1, samples), int16, of mel (1, n, bands) after the recording."""
        spoken = denoised[:, ref_signal_len[0] :].transpose(1, 2)
        audio = torch.clamp(self.vocoder(spoken), -1, 1) * 32_767
        return torch.round(audio).to(torch.int16)[:, None]


def export_f5(
    transformer: nn.Module,
    vocoder: nn.Module,
    directory: Path | str,
    options: F5GraphOptions | None = None,
) -> list[Path]:
    """Write `preprocess.onnx`, `transformer.onnx` and `decode.onnx`, FP32.

    Inputs and outputs are named and typed as those of the graphs that F5-TTS' users run:

    1. audio (1, 1, L) int16, text_ids (1, N) int32, max_duration (1,) int64 → noise, rope_cos,
       rope_sin, cat_mel_text, cat_mel_text_drop, ref_signal_len;
    2. noise, rope_cos, rope_sin, cat_mel_text, cat_mel_text_drop, time_step (1,) int32 →
       denoised, next_time_step; it is called `nfe_step` times, from time step 0, with what it
       returned; other noise than the first graph's can be given (without guidance there is no
       cat_mel_text_drop);
    3. denoised, ref_signal_len → output_audio (1, 1, samples) int16, without the recording.

    The recording's level is the caller's: upstream amplifies quiet ones before and attenuates the
    speech after.
    """
    options, folder = options or F5GraphOptions(), Path(directory)
    if not folder.is_dir():
        raise ArtifactError(f"no folder '{folder}'; create it first")
    first: Any = Preprocess(transformer, options.frames).eval()
    step = Step(transformer, options).eval()
    audio = torch.ones(1, 1, int(options.frames.sample_rate * _EXAMPLE_SECONDS), dtype=torch.int16)
    ids = torch.arange(_EXAMPLE_SYMBOLS, dtype=torch.int32)[None]
    example = (audio, ids, torch.tensor([audio.shape[2] // options.frames.hop_length * 2]))
    with torch.no_grad():
        noise, *conditions, length = first(*example)
    names = _step_inputs(options)
    start = torch.zeros(1, dtype=torch.int32)
    step_example = (*(noise, *conditions)[: len(names)], start)
    first_inputs: Axes = {"audio": {2: "samples"}, "text_ids": {1: "symbols"}, "max_duration": {}}
    first_outputs: Axes = {**dict.fromkeys(("noise", *_CONDITIONS), _TIME), "ref_signal_len": {}}
    step_inputs: Axes = {**dict.fromkeys(names, _TIME), "time_step": {}}
    step_outputs: Axes = {"denoised": _TIME, "next_time_step": {}}
    last_inputs: Axes = {"denoised": _TIME, "ref_signal_len": {}}
    last_outputs: Axes = {"output_audio": {2: "samples"}}
    calls = (
        (first, example, first_inputs, first_outputs),
        (step, step_example, step_inputs, step_outputs),
        (Decode(vocoder).eval(), (noise, length), last_inputs, last_outputs),
    )
    return [write_graph(*call, folder / name) for call, name in zip(calls, F5_GRAPHS, strict=True)]


def _step_inputs(options: F5GraphOptions) -> tuple[str, ...]:
    """Return the names of the second graph's inputs but for the time step."""
    return ("noise", *_CONDITIONS) if options.guided else ("noise", *_CONDITIONS[:-1])


def write_graphs(model: TorchModel, directory: Path) -> tuple[list[Path], dict[str, Any]]:
    """Write the three graphs and the vocoder alone; return them and their constants."""
    root: Any = model.root()
    options = _options(model)
    graphs = export_f5(root.transformer, root.vocoder, directory, options)
    graphs.append(export_vocos(root.vocoder, directory / _VOCODER))
    sizes = {"hop_length": options.frames.hop_length, "bands": options.frames.bands}
    return graphs, {name: getattr(options, name) for name in _SOLVER} | sizes


@contextmanager
def recording(model: TorchModel, directory: Path) -> Iterator[list[Path]]:
    """Record calls of the transformer and the vocoder while the block lasts.

    Calls of the first graph are not recorded: it holds a thousandth of the weights.
    """
    root: Any = model.root()
    options = _options(model)
    conditioning = Conditioning(root.transformer).eval()
    times = schedule(options)[:-1]
    spread = torch.linspace(0, options.nfe_step - 1, min(_RECORDED_STEPS, options.nfe_step))
    recorded = {int(step) for step in spread.round()}
    names = [name.replace(".onnx", ".npz") for name in (*F5_GRAPHS[1:], _VOCODER)]
    files = [directory / name for name in names]
    with ExitStack() as stack:
        add_step, decode, vocoder = (stack.enter_context(feeds_writer(file)) for file in files)

        @torch.no_grad()
        def record_step(
            x: torch.Tensor, cond: torch.Tensor, text: torch.Tensor, time: torch.Tensor, **_: Any
        ) -> None:
            step = int((times - time.reshape(-1)[0]).abs().argmin())
            if step in recorded:
                length = torch.tensor(x.shape[1])
                values = (x, *conditioning.conditions(cond, text, length))
                named = zip(_step_inputs(options), values, strict=False)
                feeds: Feeds = {name: value.numpy() for name, value in named}
                add_step(feeds | {"time_step": np.array([step], dtype=np.int32)})

        def record_mel(features_input: torch.Tensor, **_: Any) -> None:
            mel = features_input.numpy()
            vocoder({"mel": mel})
            decode({"denoised": mel.transpose(0, 2, 1), "ref_signal_len": np.array([0])})

        stack.enter_context(observed(root.transformer, "forward", record_step))
        stack.enter_context(observed(root.vocoder, "decode", record_mel))
        yield files


def _options(model: TorchModel) -> F5GraphOptions:
    """Return the constants of a model's graphs: its solver, and the sizes of its frames."""
    root: Any = model.root()
    solver: Any = model
    transform = transform_of(root.vocoder)
    return F5GraphOptions(
        **{name: getattr(solver.options, name) for name in _SOLVER},
        frames=FrameSettings(
            sample_rate=model.sample_rate,
            n_fft=transform.n_fft,
            hop_length=transform.hop_length,
            win_length=transform.win_length,
            bands=root.transformer.proj_out.out_features,
        ),
    )

"""F5-TTS as three graphs, with the inputs and outputs that its users' runtimes have."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tts_compress.errors import ArtifactError
from tts_compress.export.f5_preprocess import Conditioning, Preprocess
from tts_compress.export.f5_step import F5GraphOptions, Step, schedule
from tts_compress.export.fourier import FrameSettings
from tts_compress.export.tracing import Signature, observed, trace, write_graph
from tts_compress.export.vocos import VocosGraph, export_vocos, transform_of
from tts_compress.models.base import TorchModel
from tts_compress.models.feeds import feeds_writer
from tts_compress.onnx.session import Feeds

F5_GRAPHS = ("preprocess.onnx", "transformer.onnx", "decode.onnx")
"""Files of the graphs, in the order in which they run."""

_TIME = {1: "max_duration"}
_CONDITIONS: Mapping[str, Mapping[int, str]] = {
    "rope_cos": _TIME,
    "rope_sin": _TIME,
    "cat_mel_text": _TIME,
    "cat_mel_text_drop": _TIME,
}
_PREPROCESS = Signature(
    inputs={"audio": {2: "samples"}, "text_ids": {1: "symbols"}, "max_duration": {}},
    outputs={"noise": _TIME, **_CONDITIONS, "ref_signal_len": {}},
)
_STEP = Signature(
    inputs={"noise": _TIME, **_CONDITIONS, "time_step": {}},
    outputs={"denoised": _TIME, "next_time_step": {}},
)
_DECODE = Signature(
    inputs={"denoised": _TIME, "ref_signal_len": {}},
    outputs={"output_audio": {2: "samples"}},
)
_EXAMPLE_SECONDS = 0.5
_EXAMPLE_SYMBOLS = 11

_VOCODER = "vocoder.onnx"
"""The vocoder alone, for the official object; the third graph also removes the recording."""

_RECORDED_STEPS = 4
"""Recorded steps of each part of a text: neighbouring steps hardly differ."""


class Decode(nn.Module):
    """The third graph.

    Args:
        vocos: The official vocoder; it is not changed.
    """

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

    Args:
        transformer: The official `DiT`; it is not changed.
        vocoder: The official Vocos; it is not changed.
        directory: An existing folder.
        options: Constants of the graphs.

    Raises:
        ModelError: A module cannot be exported.
        ArtifactError: A file cannot be written.
    """
    chosen = options or F5GraphOptions()
    folder = Path(directory)
    if not folder.is_dir():
        raise ArtifactError(f"no folder '{folder}'; create it first")
    first = Preprocess(transformer, chosen.frames).eval()
    audio = torch.ones(1, 1, int(chosen.frames.sample_rate * _EXAMPLE_SECONDS), dtype=torch.int16)
    ids = torch.arange(_EXAMPLE_SYMBOLS, dtype=torch.int32)[None]
    calls: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...], Signature]] = {}
    example = (audio, ids, torch.tensor([audio.shape[2] // chosen.frames.hop_length * 2]))
    with torch.no_grad():
        made: Any = first(*example)
    calls[F5_GRAPHS[0]] = (first, example, _PREPROCESS)
    start = torch.zeros(1, dtype=torch.int32)
    step = Step(transformer, chosen).eval()
    calls[F5_GRAPHS[1]] = (step, (*made[: 5 if step.guided else 4], start), _step_signature(step))
    calls[F5_GRAPHS[2]] = (Decode(vocoder).eval(), (made[0], made[-1]), _DECODE)
    return [write_graph(trace(*call), folder / name) for name, call in calls.items()]


def _step_signature(step: Step) -> Signature:
    inputs = {k: v for k, v in _STEP.inputs.items() if step.guided or k != "cat_mel_text_drop"}
    return replace(_STEP, inputs=inputs)


def write_graphs(model: TorchModel, directory: Path) -> tuple[list[Path], dict[str, Any]]:
    """Write the three graphs and the vocoder alone; return them and their constants."""
    root: Any = model.root()
    options = _options(model, root)
    graphs = export_f5(root.transformer, root.vocoder, directory, options)
    graphs.append(export_vocos(root.vocoder, directory / _VOCODER))
    return graphs, {
        "nfe_step": options.nfe_step,
        "cfg_strength": options.cfg_strength,
        "sway_sampling_coef": options.sway_sampling_coef,
        "hop_length": options.frames.hop_length,
        "bands": options.frames.bands,
    }


@contextmanager
def recording(model: TorchModel, directory: Path) -> Iterator[list[Path]]:
    """Record calls of the transformer and the vocoder while the block lasts.

    Calls of the first graph are not recorded: it holds a thousandth of the weights.
    """
    root: Any = model.root()
    options = _options(model, root)
    names = [name.replace(".onnx", ".npz") for name in (*F5_GRAPHS[1:], _VOCODER)]
    files = [directory / name for name in names]
    with ExitStack() as stack:
        step, decode, vocoder = (stack.enter_context(feeds_writer(file)) for file in files)

        def record_mel(features_input: torch.Tensor, **_: Any) -> None:
            mel = features_input.numpy()
            vocoder({"mel": mel})
            decode({"denoised": mel.transpose(0, 2, 1), "ref_signal_len": _integers(0)})

        record_step = _StepRecorder(root.transformer, options, step)
        stack.enter_context(observed(root.transformer, "forward", record_step))
        stack.enter_context(observed(root.vocoder, "decode", record_mel))
        yield files


class _StepRecorder:
    """Turns calls of the official transformer into calls of the second graph.

    Args:
        transformer: The official one.
        options: The steps it is called at.
        add: Writes a call.
    """

    def __init__(
        self, transformer: Any, options: F5GraphOptions, add: Callable[[Feeds], None]
    ) -> None:
        self._conditioning = Conditioning(transformer).eval()
        self._guided = options.cfg_strength >= 1e-5
        self._times = schedule(options)[:-1]
        spread = torch.linspace(0, options.nfe_step - 1, min(_RECORDED_STEPS, options.nfe_step))
        self._steps = {int(step) for step in spread.round()}
        self._add = add

    @torch.no_grad()
    def __call__(
        self,
        x: torch.Tensor,
        cond: torch.Tensor,
        text: torch.Tensor,
        time: torch.Tensor,
        **_: Any,
    ) -> None:
        """Record a call.

        Args:
            x: Mel with noise (1, n, bands).
            cond: The recording's mel, followed by zeros (1, n, bands).
            text: Symbols (1, N).
            time: Time of the step.
        """
        step = int((self._times - time.reshape(-1)[0]).abs().argmin())
        if step not in self._steps:
            return
        length = torch.tensor(x.shape[1])
        cosines, sines, condition, unconditioned = self._conditioning.conditions(cond, text, length)
        feeds = {"noise": x, "rope_cos": cosines, "rope_sin": sines, "cat_mel_text": condition}
        if self._guided:
            feeds["cat_mel_text_drop"] = unconditioned
        arrays: Feeds = {name: value.numpy() for name, value in feeds.items()}
        self._add(arrays | {"time_step": _integers(step).astype("int32")})


def _options(model: TorchModel, root: Any) -> F5GraphOptions:
    """Return the constants of a model's graphs: its solver, and the sizes of its frames."""
    solver: Any = getattr(model, "options", F5GraphOptions())
    transform = transform_of(root.vocoder)
    return F5GraphOptions(
        nfe_step=solver.nfe_step,
        cfg_strength=solver.cfg_strength,
        sway_sampling_coef=solver.sway_sampling_coef,
        frames=FrameSettings(
            sample_rate=model.sample_rate,
            n_fft=transform.n_fft,
            hop_length=transform.hop_length,
            win_length=transform.win_length,
            bands=root.transformer.proj_out.out_features,
        ),
    )


def _integers(value: int) -> Any:
    return torch.tensor([value]).numpy()

"""An F5-TTS model's graphs, with the settings that it has, and their calibration calls."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tts_compress.export.f5 import F5_GRAPHS, export_f5
from tts_compress.export.f5_preprocess import Conditioning
from tts_compress.export.f5_settings import F5GraphOptions, schedule
from tts_compress.export.feeds import feeds_writer, observed
from tts_compress.export.mel import FrameSettings
from tts_compress.export.vocos import export_vocos, transform_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tts_compress.models.base import TorchModel
    from tts_compress.onnx.session import Feeds

__all__ = ["recording", "write_graphs"]

_VOCODER = "vocoder.onnx"
"""The vocoder alone, for the official object; the third graph is it behind a cut."""

_SEEN_STEPS = 4
"""Steps of each part of a text that are recorded: neighbours hardly differ."""


def write_graphs(model: TorchModel, directory: Path) -> tuple[list[Path], dict[str, Any]]:
    """Write the three graphs and the vocoder alone; return them and what is constant in them."""
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
    """Write calls of the transformer and the vocoder for as long as the block lasts.

    The first graph's are not seen: it holds a thousandth of the weights.
    """
    root: Any = model.root()
    options = _options(model, root)
    names = [name.replace(".onnx", ".npz") for name in (*F5_GRAPHS[1:], _VOCODER)]
    files = [directory / name for name in names]
    with ExitStack() as stack:
        step, decode, vocoder = (stack.enter_context(feeds_writer(file)) for file in files)

        def see_mel(features_input: torch.Tensor, **_: Any) -> None:
            mel = features_input.numpy()
            vocoder({"mel": mel})
            decode({"denoised": mel.transpose(0, 2, 1), "ref_signal_len": _integers(0)})

        see_step = _StepObserver(root.transformer, options, step)
        stack.enter_context(observed(root.transformer, "forward", see_step))
        stack.enter_context(observed(root.vocoder, "decode", see_mel))
        yield files


class _StepObserver:
    """Turns calls of the official transformer into those of the second graph.

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
        spread = torch.linspace(0, options.nfe_step - 1, min(_SEEN_STEPS, options.nfe_step))
        self._seen = {int(step) for step in spread.round()}
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
        """See a call.

        Args:
            x: Mel with noise (1, n, bands).
            cond: The recording's mel, followed by zeros (1, n, bands).
            text: Symbols (1, N).
            time: Of the step.
        """
        step = int((self._times - time.reshape(-1)[0]).abs().argmin())
        if step not in self._seen:
            return
        length = torch.tensor(x.shape[1])
        cosines, sines, said, unsaid = self._conditioning.conditions(cond, text, length)
        feeds = {"noise": x, "rope_cos": cosines, "rope_sin": sines, "cat_mel_text": said}
        if self._guided:
            feeds["cat_mel_text_drop"] = unsaid
        arrays: Feeds = {name: value.numpy() for name, value in feeds.items()}
        self._add(arrays | {"time_step": _integers(step).astype("int32")})


def _options(model: TorchModel, root: Any) -> F5GraphOptions:
    """Return what is constant in a model's graphs: its solver, and the sizes of its frames."""
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

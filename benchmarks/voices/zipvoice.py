"""ZipVoice as k2-fsa exports it, and Vocos, at their true size with random weights.

The networks are those of the repository k2-fsa/ZipVoice, which is no package: its folder is in
PYTHONPATH. Inputs and outputs are those of its `onnx_export.py`, and sizes those of its
`zipvoice_base.json`, which are the defaults of its class.
"""

from pathlib import Path
from typing import Any

from benchmarks.voices.voice import BenchVoice, built, export_graph, imported_in_part

_SYMBOLS, _BANDS, _RATE = 360, 100, 24_000
_PARTS = ("zipvoice", "zipvoice.models", "zipvoice.models.modules", "zipvoice.utils", "vocos")
_UNUSED = ("condition_time_mask", "get_tokens_index", "make_pad_mask", "pad_labels")
_STAND_INS: dict[str, dict[str, Any]] = {
    "zipvoice.utils.common": dict.fromkeys((*_UNUSED, "prepare_avg_tokens_durations")),
    "zipvoice.bin": {},
    "zipvoice.tokenizer": {},
    "zipvoice.tokenizer.tokenizer": {"SimpleTokenizer": None},
    "zipvoice.utils.checkpoint": {"load_checkpoint": None},
}
_VOCODER = {
    "model_type": "vocos",
    "sample_rate": str(_RATE),
    "n_fft": "1024",
    "hop_length": "256",
    "win_length": "1024",
    "center": "1",
    "normalized": "0",
    "window_type": "hann",
    "pad_mode": "reflect",
}


def _build_networks() -> tuple[Any, Any, Any]:
    """Return the exporter's text encoder and flow, and Vocos, seeded."""
    import torch

    common = _STAND_INS["zipvoice.utils.common"] | {"AttributeDict": dict}
    stand_ins = _STAND_INS | {"zipvoice.utils.common": common}
    torch.manual_seed(0)
    with imported_in_part((*_PARTS, "zipvoice.bin"), stand_ins) as imported:
        kind = imported("zipvoice.models.zipvoice").ZipVoice
        model = kind(vocab_size=_SYMBOLS, pad_id=0).eval()
        # Layers begin as copies of one, of which torch's exporter would write a single one.
        with torch.no_grad():
            for parameter in model.parameters():
                scale = parameter.std() / 2 if parameter.numel() > 1 else torch.zeros(())
                parameter.add_(torch.randn_like(parameter) * scale.clamp(min=0.01))
        convert = imported("zipvoice.utils.scaling_converter").convert_scaled_to_non_scaled
        convert(model, inplace=True, is_onnx=True)
        exporter = imported("zipvoice.bin.onnx_export")
        backbone = imported("vocos.models").VocosBackbone(_BANDS, 512, 1536, 8)
        text, flow = exporter.OnnxTextModel(model), exporter.OnnxFlowMatchingModel(model)
        return text.eval(), flow.eval(), _vocoder(backbone).eval()


def _vocoder(backbone: Any) -> Any:
    import torch

    class Spectra(torch.nn.Module):
        """A backbone, and the projection of Vocos' head."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = backbone, torch.nn.Linear(512, 1026)

        def forward(self, mels: Any) -> Any:
            """Return magnitudes, cosines and sines, shape `[1, 513, T]`."""
            magnitude, phase = self.head(self.backbone(mels)).transpose(1, 2).chunk(2, 1)
            return torch.exp(magnitude).clamp(max=100), torch.cos(phase), torch.sin(phase)

    return Spectra()


def _build(folder: Path) -> None:
    """Write the graphs, a table of tokens, a recording of 3 s and what it says."""
    import numpy as np
    import torch

    from tts_compress.audio import Audio, write_wav

    text, flow, vocoder = _build_networks()
    ids, frames = torch.ones(1, 40, dtype=torch.int64), torch.randn(1, 200, _BANDS)
    count, one = torch.tensor(100), torch.tensor(1.0)
    time = {0: "N", 1: "T"}
    inputs = {"tokens": ids, "prompt_tokens": ids[:, :20]}
    axes = {"tokens": time, "prompt_tokens": {0: "N", 1: "P"}, "text_condition": time}
    inputs |= {"prompt_features_len": count, "speed": one}
    _export(text, inputs, axes, folder / "text_encoder.onnx")
    names = ("x", "text_condition", "speech_condition")
    inputs = {"t": one / 2, **dict.fromkeys(names, frames), "guidance_scale": one}
    axes = {name: time for name in (*names, "v")}  # noqa: C420  torch changes each
    _export(flow, inputs, axes, folder / "fm_decoder.onnx")
    axes = {name: {0: "N", 2: "T"} for name in ("mels", "mag", "x", "y")}
    mels, path = {"mels": frames.transpose(1, 2)}, folder / "vocos_24khz.onnx"
    export_graph(vocoder, mels, axes, path, metadata=_VOCODER)
    table = "".join(f"{chr(0x4E00 + number)}\t{number}\n" for number in range(_SYMBOLS))
    (folder / "tokens.txt").write_text(table, encoding="utf-8")
    noise = np.random.default_rng(0).standard_normal(3 * _RATE, np.float32) * np.float32(0.1)
    write_wav(folder / "reference.wav", Audio(samples=noise, sample_rate=_RATE))
    said = " ".join(str(number) for number in range(10, 50))
    (folder / "reference.txt").write_text(f"ids: {said}\n", encoding="utf-8")


def _export(network: Any, inputs: Any, axes: Any, path: Path) -> None:
    """Export a network some modules of which are scripted, which are traced before."""
    import torch

    trace: Any = torch.jit.trace
    export_graph(trace(network, tuple(inputs.values())), inputs, axes, path, opset=13)


_SPEC = built("text_encoder.onnx", _build, [Path(__file__)], ("vocos", "torch"), "vocos==0.1.0")
VOICES = (BenchVoice(name="zipvoice", spec=_SPEC, held=lambda _: {}),)

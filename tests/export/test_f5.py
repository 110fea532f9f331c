"""F5-TTS as graphs: called in a loop they are the official sampler."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from tts_compress.errors import ArtifactError, ModelError

torch = pytest.importorskip("torch")

from tts_compress.export import F5GraphOptions, OnnxModule, export_f5  # noqa: E402
from tts_compress.export.f5 import F5_GRAPHS  # noqa: E402
from tts_compress.export.f5_step import schedule  # noqa: E402

_MEL = {
    "n_fft": 1024,
    "hop_length": 256,
    "win_length": 1024,
    "n_mel_channels": 100,
    "target_sample_rate": 24000,
    "mel_spec_type": "vocos",
}
_VARIANTS: dict[str, tuple[dict[str, Any], F5GraphOptions]] = {
    "version 1": ({}, F5GraphOptions(nfe_step=6)),
    "version 0": ({"text_mask_padding": False, "pe_attn_head": 1}, F5GraphOptions(nfe_step=4)),
    "no text layers": ({"conv_layers": 0}, F5GraphOptions(nfe_step=3, cfg_strength=1.3)),
    "normed, skipping": (
        {"qk_norm": "rms_norm", "long_skip_connection": True},
        F5GraphOptions(nfe_step=4, tabulate_time=False, sway_sampling_coef=None),
    ),
    "unguided": ({}, F5GraphOptions(nfe_step=3, cfg_strength=0)),
}


def _call(samples: int, symbols: int) -> tuple[Any, Any]:
    """Return a recording (L,), int16, and symbols (1, N)."""
    generator = torch.Generator().manual_seed(samples)
    audio = (3000 * torch.randn(samples, generator=generator)).to(torch.int16)
    return audio, torch.randint(60, (1, symbols), generator=generator)


def _sample(
    f5_module: Callable[[str], Any], transformer: Any, options: F5GraphOptions, call: Any
) -> tuple[Any, Any]:
    """Return the official sampler's output for a call, and its initial noise."""
    cfm = f5_module("f5_tts.model.cfm").CFM(transformer, mel_spec_kwargs=_MEL).eval()
    audio, symbols, duration = call
    mel, trajectory = cfm.sample(
        audio[None].float() / 32768,
        symbols,
        duration,
        steps=options.nfe_step,
        cfg_strength=options.cfg_strength,
        sway_sampling_coef=options.sway_sampling_coef,
        seed=5,
    )
    return mel, trajectory[0]


@pytest.mark.parametrize("variant", _VARIANTS)
def test_graphs_in_a_loop_are_the_official_sampler(
    f5_module: Callable[[str], Any],
    make_dit: Callable[..., Any],
    make_vocos: Callable[..., Any],
    tmp_path: Path,
    variant: str,
) -> None:
    arch, options = _VARIANTS[variant]
    transformer, vocos = make_dit(**arch), make_vocos()
    files = export_f5(transformer, vocos, tmp_path, options)
    assert [path.name for path in files] == list(F5_GRAPHS)
    first, step, last = (OnnxModule(path, threads=1) for path in files)
    # The second is shorter than its text: upstream speaks at least one frame.
    for samples, count, duration in ((20_000, 17, 150), (30_001, 140, 50)):
        audio, symbols = _call(samples, count)
        official, noise = _sample(f5_module, transformer, options, (audio, symbols, duration))
        given = first(audio[None, None], symbols.int(), torch.tensor([duration]))
        drawn, *conditions, recorded = given
        assert drawn.shape == noise.shape
        assert 0.9 < float(drawn.std()) < 1.1
        mel, number = noise, torch.zeros(1, dtype=torch.int32)
        for _ in range(options.nfe_step):
            mel, number = step(mel, *conditions[: 4 if options.cfg_strength else 3], number)
        assert int(number) == options.nfe_step
        assert torch.allclose(mel, official, atol=1e-5 * float(official.abs().max()))
        spoken = official[:, samples // 256 :].transpose(1, 2)
        expected = vocos.decode(spoken).clamp(-1, 1)
        found = last(mel, recorded)
        assert found.dtype == torch.int16
        assert found.shape == (1, 1, expected.shape[1])
        assert torch.allclose(found[0] / 32767, expected, atol=1e-4)  # 16 bits


def test_names_types_and_free_lengths(
    make_dit: Callable[..., Any], make_vocos: Callable[..., Any], tmp_path: Path
) -> None:
    """Other programs that run such graphs depend on these."""
    files = export_f5(make_dit(), make_vocos(), tmp_path, F5GraphOptions(nfe_step=2))
    kinds = {1: "f32", 5: "i16", 6: "i32", 7: "i64"}
    found = []
    for path in files:
        graph = onnx.load(path).graph
        for values in (graph.input, graph.output):
            types = [(v.name, kinds[v.type.tensor_type.elem_type]) for v in values]
            found.append(" ".join(f"{name}:{kind}" for name, kind in types))
    shared = "rope_cos:f32 rope_sin:f32 cat_mel_text:f32 cat_mel_text_drop:f32"
    assert found == [
        "audio:i16 text_ids:i32 max_duration:i64",
        f"noise:f32 {shared} ref_signal_len:i64",
        f"noise:f32 {shared} time_step:i32",
        "denoised:f32 next_time_step:i32",
        "denoised:f32 ref_signal_len:i64",
        "output_audio:i16",
    ]
    assert any(n.op_type == "RandomNormalLike" for n in onnx.load(files[0]).graph.node)
    weights = {n.name.split("/")[1] for n in onnx.load(files[1]).graph.node if n.op_type == "Conv"}
    assert weights == {"input_embed"}


def test_tables_take_the_place_of_weights(
    make_dit: Callable[..., Any], make_vocos: Callable[..., Any], tmp_path: Path
) -> None:
    transformer, vocos = make_dit(), make_vocos()
    sizes = []
    for tabulate in (True, False):
        options = F5GraphOptions(nfe_step=8, tabulate_time=tabulate)
        sizes.append(export_f5(transformer, vocos, tmp_path, options)[1].stat().st_size)
    modulation = sum(b.attn_norm.linear.weight.numel() for b in transformer.transformer_blocks)
    assert sizes[1] - sizes[0] > 4 * modulation / 2
    assert transformer.transformer_blocks[0].attn_norm.linear.weight.shape == (6 * 64, 64)


@pytest.mark.parametrize("steps", [1, 5, 6, 7, 8, 10, 12, 16, 32])
@pytest.mark.parametrize("sway", [None, -1.0, 0.5])
def test_schedule_is_the_official_one(
    f5_module: Callable[[str], Any], steps: int, sway: float | None
) -> None:
    few = f5_module("f5_tts.model.utils").get_epss_timesteps
    times = few(steps, device="cpu", dtype=torch.float32)
    if sway is not None:
        times = times + sway * (torch.cos(torch.pi / 2 * times) - 1 + times)
    found = schedule(F5GraphOptions(nfe_step=steps, sway_sampling_coef=sway))
    assert torch.allclose(found, times, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nfe_step": 0}, "nfe_step is 0; give 1 or more"),
        ({"cfg_strength": -1.0}, "cfg_strength is -1.0; give 0 or more"),
        ({"cfg_strength": float("nan")}, "cfg_strength is nan"),
    ],
)
def test_wrong_options(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        F5GraphOptions(**changes)


def test_other_networks_are_refused(
    f5_module: Callable[[str], Any],
    make_dit: Callable[..., Any],
    make_vocos: Callable[..., Any],
    tmp_path: Path,
) -> None:
    vocos = make_vocos()
    with pytest.raises(ModelError, match="Linear has no rotary_embed; only F5-TTS' DiT"):
        export_f5(torch.nn.Linear(1, 1), vocos, tmp_path)
    sizes = {"dim": 64, "depth": 2, "heads": 2, "dim_head": 32, "text_num_embeds": 60}
    for kind, missing in (("UNetT", "transformer_blocks"), ("MMDiT", "input_embed")):
        other = getattr(f5_module("f5_tts.model"), kind)(**sizes)
        with pytest.raises(ModelError, match=f"{kind} has no {missing}; only F5-TTS' DiT"):
            export_f5(other, vocos, tmp_path)
    spreading = make_dit(text_embedding_average_upsampling=True)
    with pytest.raises(ModelError, match="spreads its text evenly"):
        export_f5(spreading, vocos, tmp_path)
    moved = make_dit()
    moved.text_embed.freqs_cis += 0.1
    with pytest.raises(ModelError, match="other positions than those known"):
        export_f5(moved, vocos, tmp_path)
    with pytest.raises(ArtifactError, match="no folder"):
        export_f5(make_dit(), vocos, tmp_path / "none")
    assert not list(tmp_path.iterdir())

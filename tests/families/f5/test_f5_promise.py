"""F5-TTS keeps what every system in torch promises; its manifest agrees with the object."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.case import Commanded, Deployed, FamilyCase, Learning, SchemePromise
from tests.families.conformance import FamilyPromises
from tests.measures import snr_db
from tts_compress.cli import main
from tts_compress.compression import compress
from tts_compress.compression.hybrid import compressed_components, hybrids
from tts_compress.models import load
from tts_compress.models.base import Model
from tts_compress.models.f5.model import F5Model
from tts_compress.qat.options import TrainingOptions
from tts_compress.recipes.recipe import find_recipe

_TEXT = "hello there, this is a text."
_BLOCKS = 2 * 7
"""Linear layers of two transformer blocks: modulation, four of attention, two of the rest."""

_VOCODER = 2 * 2
_OBJECTIVES = ("transformer", "vocoder.decode")


def _promise(snr_db: float, share: float, kind: str) -> SchemePromise:
    counts = {f"Linear {kind}": _BLOCKS + _VOCODER}
    if kind == "int4/none":
        counts = {f"Linear {kind}": _BLOCKS, "Linear int8/none": _VOCODER}
    return SchemePromise(snr_db=snr_db, share=share, counts=counts)


def _check(request: pytest.FixtureRequest, model: Any, again: Any, scheme: str) -> None:
    """Compare the manifest with the layers that the recipe names, and speak as upstream's users."""
    del request, scheme
    original = dict(model.root().named_parameters())
    named = {
        name.removesuffix(".weight"): weight.numel()
        for name, weight in original.items()
        if name.endswith(".weight") and weight.dim() == 2
        if ".transformer_blocks." in name or (name.startswith("vocoder.") and ".pwconv" in name)
    }
    layers = {x.module: x.parameters for x in again.manifest.layers if x.weights != "float32"}
    assert {name: layers.get(name) for name in named} == named
    assert "vocoder.yaml" in {path.name for path in again.files().settings}
    audio, rate, _ = again.api.infer(
        ref_file=str(again.prompt.audio),
        ref_text="one two three four five six.",
        gen_text="good day",
        nfe_step=4,
        seed=1,
        show_info=str,
        progress=None,
    )
    assert rate == 24_000
    assert np.isfinite(audio).all()
    assert np.abs(audio).max() > 1e-4


class TestF5(FamilyPromises):
    """Ratios are 6 dB below what is measured; names take much of so small a file."""

    case = FamilyCase(
        family="f5-tts",
        model="tiny_f5",
        text=_TEXT,
        schemes={
            "fp16": _promise(61, 0.6, "float16/float16"),
            "bf16": _promise(54, 0.6, "bfloat16/bfloat16"),
            "int8-weight-only": _promise(55, 0.52, "int8/none"),
            "int8-dynamic": _promise(49, 0.54, "int8/dynamic"),
            "int8-static": _promise(43, 0.54, "int8/static"),
            "int8": _promise(49, 0.54, "int8/dynamic"),
            "int4-weight-only": _promise(26, 0.47, "int4/none"),
        },
        check=_check,
        saved=(
            *("config.yaml", "model.safetensors", "reference.txt", "reference.wav"),
            *("vocab.txt", "vocoder.yaml"),
        ),
        computed=lambda _: True,  # rotations, windows, filters
        learning=Learning(
            texts=("one and two.", "three or four.", "five, six."),
            objectives=_OBJECTIVES,
            learned={"transformer/mse": 0.6},
            stops=(("train transformer", 13), ("train vocoder.decode", 13)),
            deployed={
                scheme: Deployed(objectives=_OBJECTIVES, snr_db=60)
                for scheme in ("int8-qat", "int4-weight-only")
            },
        ),
        commanded=Commanded(
            spec=lambda request: f"f5-tts:{request.getfixturevalue('tiny_f5_dir')}?nfe_step=4",
            prompt='[prompt]\naudio = "voice.wav"\ntext = "six seven eight."\n',
            settings={"solver": "4 steps, guidance 2", "recording": "voice.wav"},
            timed=("transformer.transformer_blocks", "vocoder"),
        ),
    )


def test_the_vocoders_first_convolution_is_kept_for_a_reason(tiny_f5: F5Model) -> None:
    """Rounding its weights alone costs more than all that the recipe rounds."""
    shipped = find_recipe("f5-tts", "int8-weight-only")
    rule = shipped.component[0].model_copy(update={"match": "vocoder.backbone.embed"})
    alone = shipped.model_copy(update={"component": (rule,)})
    original = tiny_f5.synthesize("good day", seed=0).samples
    models = (compress(tiny_f5, "int8-weight-only", recipe=r) for r in (shipped, alone))
    kept, rounded = (
        float(np.square(model.synthesize("good day", seed=0).samples - original).mean())
        for model in models
    )
    assert rounded > 4 * kept


def test_one_compressed_component_at_a_time_speaks_in_the_reference(
    tiny_f5: F5Model, tmp_path: Path
) -> None:
    """Saved and opened, which `evaluate --blame` does with each; together they are the whole."""
    small = compress(tiny_f5, "int8-weight-only")
    before = tiny_f5.synthesize(_TEXT, seed=0).samples
    names = compressed_components(small)
    assert {"transformer.transformer_blocks", "vocoder"} <= {*names}
    levels = []
    for name, model in hybrids(tiny_f5, small, names):
        spoken = load(model.save(tmp_path / name)).synthesize(_TEXT, seed=0).samples
        np.testing.assert_array_equal(spoken, model.synthesize(_TEXT, seed=0).samples)
        levels.append(snr_db(before, spoken))
    whole = snr_db(before, small.synthesize(_TEXT, seed=0).samples)
    assert whole - 3 < min(levels) < 100
    assert max(levels) > whole


_TEXTS = ("one and two.", "three or four.", "five, six.")


@pytest.fixture(scope="module")
def texts(write_texts: Callable[..., str]) -> str:
    """Return the path of a calibration set."""
    return write_texts(_TEXTS)


def test_training_changes_no_rule() -> None:
    assert find_recipe("f5-tts", "int8-qat").component == find_recipe("f5-tts", "int8").component


def test_command_trains_and_speaks(
    tiny_f5_dir: Path, texts: str, tmp_path: Path, few_updates: TrainingOptions
) -> None:
    del few_updates
    output = tmp_path / "small"
    quick = ["--steps", "2", "--threads", "1", "--scheme", "int4-weight-only", "--texts", texts]
    recording = ["--reference", str(tiny_f5_dir / "reference.wav"), "--reference-text", "one two"]
    spec = f"f5-tts:{tiny_f5_dir}?nfe_step=2"
    arguments = ["qat", spec, "--output", str(output), *quick, *recording]
    assert main(arguments) == 0
    small = load(output)
    assert isinstance(small, Model)
    assert small.manifest is not None
    assert small.manifest.scheme == "int4-weight-only"
    assert (tmp_path / "small.training" / "transformer" / "checkpoint.safetensors").is_file()
    assert main([*arguments, "--resume", "--force"]) == 0

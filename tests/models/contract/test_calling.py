"""Values between graphs, of the types that inputs have, and the sound of spectra."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.graphs import make_model, make_node
from tests.models.contract.conftest import build_vocoder, build_vocos
from tts_compress.compression import compress
from tts_compress.errors import ModelError, RecipeError
from tts_compress.models import load
from tts_compress.models.contract.calling import cast
from tts_compress.models.contract.schema import Spectrum
from tts_compress.models.contract.sound import to_samples
from tts_compress.models.feeds import GraphInput


def _input(dtype: Any) -> GraphInput:
    return GraphInput(name="x", dtype=np.dtype(dtype), shape=("N",))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        *(("i8", "i4"), ("i4", "i8"), ("u1", "i8"), ("f2", "f4"), ("f4", "f2"), ("f8", "f4")),
        *(("?", "f4"), ("?", "i8"), ("i4", "f8")),
    ],
)
def test_an_output_keeps_its_values_in_another_type(given: str, wanted: str) -> None:
    values = np.array([0, 1, 1], given)
    found = cast(values, _input(wanted), "mel")
    assert found.dtype == np.dtype(wanted)
    assert found.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("values", "wanted", "message"),
    [
        (np.array([0.4, -7.5], "f4"), "i8", r"output 'mel' float32 cannot be input 'x int64 \[N\]"),
        (np.array([3.0], "f4"), "i4", "integers stay integers and reals reals"),
        (np.array([3], "i8"), "f4", "output 'mel' int64 cannot be input 'x float32"),
        (np.array([3.0], "f4"), "?", "cannot be input 'x bool"),
        (np.array([1j]), "f4", "cannot be input"),
        (np.array([5, 1 << 40]), "i4", "int64 is 1099511627776, which input 'x int32"),
        (np.array([-1]), "u1", "int64 is -1, which input 'x uint8"),
        (np.array([1e30], "f4"), "f2", "float32 is 1e[+]30, which input 'x float16"),
    ],
)
def test_an_output_that_would_change_is_refused_by_name(
    values: Any, wanted: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        cast(values, _input(wanted), "mel")


def test_numbers_of_a_contract_fit_their_input() -> None:
    assert cast(1, _input("f4"), None).dtype == np.float32
    assert cast([2.0], _input("i8"), None).tolist() == [2]
    for value, wanted in ((2**63, "i8"), ([1, 300], "u1"), (1e300, "f4"), (0.5, "i8")):
        with pytest.raises(ModelError, match=r"a value of the contract is .* does not hold"):
            cast(value, _input(wanted), None)


def _with_vocoder(path: Path, vocoder: onnx.ModelProto) -> Path:
    onnx.save(vocoder, path.with_name("hifigan_v2.onnx"))
    text = 'version = 1\nbase = "matcha"\nname = "mine"\n'
    path.with_name("contract.toml").write_text(text, encoding="utf-8")
    return path


def test_features_do_not_become_codes_of_the_next_graph(make_matcha: Callable[..., Path]) -> None:
    """A mel spectrogram in a vocoder of codes was cut to whole numbers, and spoken."""
    vocoder = build_vocoder()
    vocoder.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    vocoder.graph.node[0].input[0] = "mel.real"
    vocoder.graph.node.insert(0, make_node("Cast", "mel", "mel.real", to=1))
    path = _with_vocoder(make_matcha(), vocoder)
    voice: Any = load(path)
    message = r"output 'mel' float32 cannot be input 'mel int64 \[N, 32, L\]'"
    with pytest.raises(ModelError, match=message):
        voice.synthesize("ids: 5 6", seed=0)
    with pytest.raises(ModelError, match=message):
        compress(voice, "int8-weight-only")


def test_audio_is_real(make_matcha: Callable[..., Path]) -> None:
    """Samples of 16 bits were written as reals up to 32,767."""
    vocoder = build_vocoder()
    vocoder.graph.node.append(make_node("Cast", "audio", "pcm", to=TensorProto.INT16))
    vocoder.graph.output[0].name = "pcm"
    vocoder.graph.output[0].type.tensor_type.elem_type = TensorProto.INT16
    voice: Any = load(_with_vocoder(make_matcha(), vocoder))
    with pytest.raises(ModelError, match=r"output 'pcm' is int16; audio is real numbers"):
        voice.synthesize("ids: 5 6", seed=0)


_SIZE, _STEP = 64, 16


def _outputs(form: str, spectra: Any) -> list[Any]:
    if form == "real-imaginary":
        return [spectra.real, spectra.imag]
    if form == "magnitude-phase":
        return [abs(spectra), np.angle(spectra)]
    return [abs(spectra), np.cos(np.angle(spectra)), np.sin(np.angle(spectra))]


@pytest.mark.parametrize("form", ["magnitude-cosine-sine", "magnitude-phase", "real-imaginary"])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_spectrum_becomes_the_sound_it_was(form: str, normalized: bool) -> None:
    torch = pytest.importorskip("torch")
    sound = np.random.default_rng(0).standard_normal(20 * _STEP).astype(np.float32)
    spectra = torch.stft(
        torch.from_numpy(sound)[None],
        _SIZE,
        _STEP,
        window=torch.hann_window(_SIZE),
        center=True,
        normalized=normalized,
        return_complex=True,
    ).numpy()
    stated = Spectrum.model_validate(
        {"form": form, "n_fft": _SIZE, "hop_length": _STEP, "normalized": normalized}
    )
    made = to_samples(stated, _outputs(form, spectra))
    assert made.dtype == np.float32
    assert np.allclose(made, sound, atol=1e-5)


def test_frames_that_are_not_centred_keep_both_ends() -> None:
    """Frames of ones without a window give their mean where they overlap."""
    spectra = np.zeros((1, _SIZE // 2 + 1, 3), np.complex64)
    spectra[:, 0] = _SIZE
    stated = Spectrum.model_validate(
        {"form": "real-imaginary", "n_fft": _SIZE, "hop_length": _STEP, "window": "none"}
    )
    stated = stated.model_copy(update={"center": False})
    made = to_samples(stated, _outputs("real-imaginary", spectra))
    assert np.allclose(made, np.ones(_SIZE + 2 * _STEP))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ('form = "magnitude-phases"', "then.0.spectrum.form"),
        ('form = "magnitude-phase"\noutputs = ["mag"]', "'magnitude-phase' needs 2 outputs"),
        ('form = "magnitude-phase"\noutputs = ["mag", "p"]', "no output 'p'; its outputs are mag"),
        ('form = "magnitude-phase"\nwindow = "blackman"', "then.0.spectrum.window"),
    ],
)
def test_a_wrong_transform_gets_one_line(
    make_matcha: Callable[..., Path], own: str, message: str
) -> None:
    path = make_matcha(build_vocos())
    path.with_name("contract.toml").write_text(
        'version = 1\nbase = "matcha"\n[[then]]\ngraph = "vocos*.onnx"\n[then.spectrum]\n'
        f"n_fft = 64\nhop_length = 16\n{own}\n",
        encoding="utf-8",
    )
    with pytest.raises(RecipeError, match=message) as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_voice_with_two_vocoders_or_none_is_told_to_choose(
    make_matcha: Callable[..., Path],
) -> None:
    path = make_matcha(build_vocos())
    vocoder = path.with_name("vocos-22khz-univ.onnx")
    assert load(path).describe()["contract"] == "matcha-vocos"
    vocoder.unlink()
    with pytest.raises(ModelError, match=r"fit the contracts matcha and matcha-vocos; put"):
        load(f"contract:{path}")


@pytest.mark.parametrize("axis", [2, -2])
def test_an_axis_of_what_no_round_returned_has_no_length(tmp_path: Path, axis: int) -> None:
    """In the first round it was 8 along -2, and an error along 2."""
    nodes = [make_node("Cast", "count", "audio", to=1), make_node("Cast", "ids", "id", to=1)]
    nodes += [make_node("Reshape", "id one", "step"), make_node("Concat", "past step", "z", axis=2)]
    kind = TensorProto.INT64
    model = make_model(
        nodes,
        {"ids": (kind, [1, "T"]), "count": (kind, [1]), "past": [1, 1, "P", 1]},
        {"audio": None, "z": None},
        {"one": np.ones(4, np.int64)},
    )
    onnx.save(model, tmp_path / "a.onnx")
    (tmp_path / "contract.toml").write_text(
        'version = 1\nname = "cached"\nsample_rate = 16000\nloop = "speech"\n'
        f'until.speech.longest = 3\nsize.past = {{ output = "z", axis = {axis} }}\n'
        'tokens.source = "ids"\ninput.ids.role = "tokens"\n'
        'input.count = { role = "lengths", size = "past" }\n'
        'input.past = { role = "state", output = "z" }\n',
        encoding="utf-8",
    )
    voice: Any = load(tmp_path / "a.onnx")
    assert voice.synthesize("ids: 5", seed=None).samples.tolist() == [0, 1, 2]


def test_what_is_filled_up_has_a_bound(tmp_path: Path) -> None:
    """A size that a graph returns decides how much memory is taken."""
    nodes = [make_node("Cast", "ids", "real", to=1), make_node("Mul", "real row", "wide")]
    first = make_model(
        [*nodes, make_node("Identity", "many", "n")],
        {"ids": (TensorProto.INT64, [1, "T"])},
        {"wide": None, "n": (TensorProto.INT64, [])},
        {"row": np.ones((1, 1, 600), np.float32), "many": np.array(40_000, np.int64)},
    )
    second = make_model([make_node("Neg", "wide", "y")], {"wide": [1, "T", "C"]}, {"y": None})
    onnx.save(first, tmp_path / "a.onnx")
    onnx.save(second, tmp_path / "b.onnx")
    (tmp_path / "contract.toml").write_text(
        'version = 1\nname = "long"\nsample_rate = 16000\nsize.frames.output = "n"\n'
        'tokens.source = "ids"\ninput.ids.role = "tokens"\n'
        '[[then]]\ngraph = "b.onnx"\ninput.wide = { role = "output", pad = "frames" }\n',
        encoding="utf-8",
    )
    with pytest.raises(ModelError, match=r"no input 'wide float32.*more than \d+ bytes"):
        load(tmp_path / "a.onnx").synthesize("ids: 5")

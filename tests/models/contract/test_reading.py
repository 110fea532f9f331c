"""Contracts: what they may state, how they are found, and what is said of wrong ones."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.models.contract.conftest import build_voice, write_styles
from tts_compress.cli import main
from tts_compress.compression import compress
from tts_compress.config import data_names
from tts_compress.errors import ModelError, RecipeError, TextError
from tts_compress.models import load, open_model
from tts_compress.models.base import Speaking
from tts_compress.models.contract.reading import resolved
from tts_compress.models.contract.symbols import read_lexicon, read_vocabulary

# A voice that no one has heard of: other names, a vocabulary in JSON, a speaker of two, tones.
_STRANGER = """
version = 1
name = "stranger"
sample_rate = 16000
language = "en-us"
[tokens]
source = "characters"
vocabulary = "letters.json"
bos = 1
[input.phones]
role = "tokens"
[input.voice_id]
role = "speaker"
speakers = ["ann", "bob"]
count = 2
[input.rate]
role = "speed"
value = 1
"""


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """Return a voice with a contract of its own."""
    inputs = {"phones": (TensorProto.INT32, [1, "L"]), "voice_id": (TensorProto.INT64, [1])}
    roles = {"tokens": "phones", "speaker": "voice_id", "speed": "rate"}
    folder = tmp_path / "stranger"
    folder.mkdir()
    onnx.save(build_voice({**inputs, "rate": []}, roles, "speech"), folder / "voice.onnx")
    letters = {letter: 10 + n for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz .")}
    (folder / "letters.json").write_text(json.dumps(letters), encoding="utf-8")
    (folder / "contract.toml").write_text(_STRANGER, encoding="utf-8")
    return folder / "voice.onnx"


def test_several_values_for_one_number_are_refused(stranger: Path) -> None:
    stated = _STRANGER.replace("value = 1", "value = [1, 2]")
    (stranger.parent / "contract.toml").write_text(stated, encoding="utf-8")
    with pytest.raises(ModelError, match=r"the contract gives shape \[2\] to input"):
        load(stranger).synthesize("bad cab", seed=0)


def test_a_table_that_is_named_like_a_reference_stays_one(tmp_path: Path) -> None:
    table = {"config": "scale", "role": "speed"}
    assert resolved(table, {"config": {"scale": 2}}, tmp_path) == table
    assert resolved({"config": "scale"}, {"config": {"scale": 2}}, tmp_path) == 2


@pytest.mark.slow
def test_twenty_lines_make_a_new_voice_work(stranger: Path, tmp_path: Path) -> None:
    """Load, speak, compress on the shipped texts, save, load again, and by the commands."""
    assert len(_STRANGER.strip().splitlines()) <= 20
    voice: Any = load(stranger)
    [call] = voice.speaking_as(Speaking(speaker="bob")).calibration_calls(["bad cab"], seed=0)
    assert {name: array.tolist() for name, array in call.items()} == {
        "phones": [[1, 11, 10, 13, 36, 12, 10, 11]],
        "voice_id": [1],
        "rate": 1.0,
    }
    small = compress(voice, "int8")
    assert small.manifest is not None
    assert small.manifest.calibration is not None
    assert small.manifest.calibration.set == "en"
    saved = load(small.save(tmp_path / "small"))
    reference, candidate = (v.synthesize("Bad cab.", seed=0).samples for v in (voice, saved))
    assert 0 < np.abs(reference - candidate).max() < 0.2 * np.abs(reference).max()
    wav = str(tmp_path / "spoken.wav")
    assert main(["synthesize", str(stranger), "Bad.", "--speaker", "bob", "--output", wav]) == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '[input.rate]\nrole = "speed"\nvalue = 1',
            "",
            r"input 'rate float32 \[\]' of the graph is unexplained; add a table \[input.rate\]",
        ),
        ("[input.rate]", "[input.tempo]", "the graph has no input 'tempo'; its inputs are phones"),
        ('role = "speed"', 'role = "speaker"', r"\[input.rate\] has the role 'speaker', of whole"),
        ("[input.phones]", '[input.phones]\ntype = "int64"', "states type int64, but the graph"),
        ('role = "speed"', 'role = "pace"', "input.rate: .*'pace'"),
        ("value = 1", "values = 1", "input.rate.speed.values: Extra inputs are not permitted"),
        ("bos = 1", f"bos = {10**20}", "tokens.bos: Input should be less than .* 999999999"),
        ("bos = 1", f"blank = {10**20}", "tokens.blank: Input should be less than .* 999999999"),
        ("bos = 1", f"eos = {[1] * 1_000}", "tokens.eos.* at most 100 items"),
        ('"letters.json"', f'{{ {"9" * 40} = "abc" }}', "vocabulary: '9999.* is no id"),
        ("version = 1", "version = 1\nthen = 2", "then: Input should be a valid array"),
        ("version = 1", "version = 1\nthen = [{graph = ''}]", "then.0.graph.* match pattern"),
        ("count = 2", f"count = 2\nvalue = {10**20}", "voice_id.speaker.value: Input should"),
        ("bos = 1", "start = 1", "tokens.start: Extra inputs are not permitted"),
        ('source = "characters"', 'source = "espresso"', "tokens.source: Input should be 'ids'"),
        ('role = "tokens"', 'role = "lengths"', "none has the role 'tokens'"),
        ('vocabulary = "letters.json"', "", "source 'characters' needs a 'vocabulary'"),
        ('"letters.json"', '"../letters.json"', "vocabulary.* should match pattern"),
        ("sample_rate = 16000", 'sample_rate = { metadata = "rate" }', "metadata has no 'rate'"),
        ("version = 1", 'version = 1\nbase = "kokoko"', "no shipped contract is named 'kokoko'"),
        ("version = 1", 'version = 1\noutput = "wav"', "no output 'wav'; its outputs are speech"),
        ("version = 1", "version = 2", "version: Input should be 1"),
        ("version = 1", "version = ", "cannot read '.*contract.toml'"),
    ],
)
def test_a_wrong_contract_gets_one_line(
    stranger: Path, refused: Callable[..., str], old: str, new: str, message: str
) -> None:
    assert old in _STRANGER
    text = _STRANGER.replace(old, new)
    stranger.with_name("contract.toml").write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=message):
        load(stranger)
    assert refused("inspect", stranger)


def test_an_unknown_voice_is_told_which_inputs_nothing_explains(stranger: Path) -> None:
    stranger.with_name("contract.toml").unlink()
    shipped = ", ".join(data_names("calib/contracts"))
    with pytest.raises(ModelError, match=rf"no shipped contract \({shipped}\) .*: phones int32"):
        load(f"contract:{stranger}")
    with pytest.raises(ModelError, match=r"no file '.*\.onnx\.json'.*contract\.toml"):
        load(stranger)
    assert open_model(f"onnx:{stranger}").family == "onnx"


def test_a_contract_takes_the_rest_from_a_shipped_one(make_kokoro: Callable[..., Path]) -> None:
    path = make_kokoro()
    text = 'version = 1\nbase = "kokoro"\nname = "mine"\ntokens.eos = 5\ninput.speed.value = 2'
    path.with_name("contract.toml").write_text(text, encoding="utf-8")
    voice: Any = load(path)
    [call] = voice.calibration_calls(["ids: 7 8"], seed=0)
    assert call["tokens"].tolist() == [[0, 7, 8, 5]]
    assert call["speed"].tolist() == [2.0]
    assert voice.describe()["contract"] == "mine"


def test_a_piper_voice_beside_a_contract_stays_one(tiny_path: Path, tmp_path: Path) -> None:
    for file in (tiny_path, tiny_path.with_name(f"{tiny_path.name}.json")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "contract.toml").write_text("version = 1", encoding="utf-8")
    assert open_model(tmp_path / tiny_path.name).family == "piper"


@pytest.mark.slow
def test_a_piper_voice_may_be_called_in_another_way(tiny_path: Path, tmp_path: Path) -> None:
    """Its numbers are those of the file beside it, but for what the contract states."""
    for file in (tiny_path, tiny_path.with_name(f"{tiny_path.name}.json")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    text = 'version = 1\nbase = "piper"\nname = "slow"\ninput.scales.value = [0.5, 2, 0.25]'
    (tmp_path / "contract.toml").write_text(text, encoding="utf-8")
    voice: Any = load(tmp_path / tiny_path.name)
    assert (voice.family, voice.sample_rate, voice.language) == ("contract", 16000, "en-us")
    usual: Any = load(tiny_path)
    [[call], [other]] = ([*v.calibration_calls(["Go on."], seed=0)] for v in (voice, usual))
    assert call["scales"].tolist() == [0.5, 2.0, 0.25]
    assert other["scales"].tolist() == pytest.approx([0.667, 1.0, 0.8])
    assert np.array_equal(call["input"], other["input"])
    saved = voice.save(tmp_path / "out")
    assert {file.name for file in saved.iterdir()} == {
        *(tiny_path.name, f"{tiny_path.name}.json", "contract.toml")
    }
    assert np.array_equal(
        load(saved / tiny_path.name).synthesize("Go on.").samples,
        voice.synthesize("Go on.").samples,
    )


def test_a_contract_goes_before_a_file_that_piper_has(stranger: Path) -> None:
    """The configuration of another system is named like Piper's."""
    config = stranger.with_name(f"{stranger.name}.json")
    for content in ("{}", '{"audio": {"sample_rate": 16000}, "phoneme_type": "espeak"}'):
        config.write_text(content, encoding="utf-8")
        assert open_model(stranger).family == "contract"


def test_styles_that_do_not_fit_are_refused(make_kokoro: Callable[..., Path]) -> None:
    path = make_kokoro()
    styles, stated = path.with_name("voices-v1.0.bin"), r"; the contract states \[510, 1, 256\]"
    for shape in ((400, 256), (510, 1), (510, 1, 0)):
        write_styles(styles, "a", shape=shape)
        with pytest.raises(
            ModelError, match=f"voice 'a' has shape {re.escape(str([*shape]))}{stated}"
        ):
            load(f"contract:{path}")
    with styles.open("wb") as file:
        np.savez(file, a=np.array([{}], dtype=object))
    with pytest.raises(ModelError, match=r"cannot read styles .*pickled objects are never"):
        load(f"contract:{path}")


def test_replacements_cannot_grow_a_text_without_end(stranger: Path) -> None:
    """Thirty-five rules, each of which doubles the text, are seconds of typing."""
    rules = [f"{chr(97 + n % 25)} = '{2 * chr(97 + (n + 1) % 25)}'" for n in range(25)]
    rules += ["z = 'zzzzzzzzzzzzzzzz'"]
    text = f"{_STRANGER}[tokens.replace]\n" + "\n".join(rules)
    stranger.with_name("contract.toml").write_text(text, encoding="utf-8")
    voice: Any = load(stranger)
    with pytest.raises(TextError, match=r"replacement of 's' makes .* change \[tokens.replace\]"):
        voice.synthesize("abc", seed=0)


def test_constants_may_have_a_shape(tmp_path: Path) -> None:
    """Three whole numbers for each token, as of languages or emotions."""
    features = (TensorProto.INT64, [1, "L", 3])
    inputs = {"phones": (TensorProto.INT32, [1, "L"]), "features": features}
    roles = {"tokens": "phones", "speed": "rate"}
    onnx.save(build_voice({**inputs, "rate": []}, roles, "speech"), tmp_path / "v.onnx")
    letters = {letter: 10 + n for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz .")}
    (tmp_path / "letters.json").write_text(json.dumps(letters), encoding="utf-8")
    head, rate = _STRANGER[: _STRANGER.index("[input.voice_id]")], '[input.rate]\nrole = "speed"\n'
    table = '[input.features]\nrole = "constant"\nvalue = [4, 0, 7]\n'
    for size, message in (("3", None), ("2", "last size must be 3")):
        text = f'{head}{rate}value = 1\n{table}shape = [1, "tokens", {size}]\n'
        (tmp_path / "contract.toml").write_text(text, encoding="utf-8")
        if message is not None:
            with pytest.raises(RecipeError, match=message):
                load(f"contract:{tmp_path / 'v.onnx'}")
            continue
        voice: Any = load(tmp_path / "v.onnx")
        [call] = voice.calibration_calls(["abc"], seed=0)
        assert call["features"].dtype == np.int64
        assert call["features"].tolist() == [[[4, 0, 7]] * call["phones"].shape[1]]


def test_noise_is_bounded_before_it_is_drawn(stranger: Path) -> None:
    for shape in ("[1000000, 1000000]", "[3, -5]"):
        noise = f'[input.rate]\nrole = "noise"\nshape = {shape}\n'
        text = _STRANGER[: _STRANGER.index("[input.rate]")] + noise
        stranger.with_name("contract.toml").write_text(text, encoding="utf-8")
        voice: Any = load(stranger)
        with pytest.raises(ModelError, match=r"noise of the contract .* an array of shape"):
            voice.synthesize("abc", seed=0)


def test_ids_of_a_vocabulary_are_rows_of_an_embedding(tmp_path: Path) -> None:
    lines, table = tmp_path / "tokens.txt", tmp_path / "config.json"
    lines.write_text(f"a {'9' * 5_000}\n", encoding="utf-8")
    with pytest.raises(ModelError, match=r"line 1: .* is no 'symbol id'"):
        read_vocabulary(lines)
    for number in (2**70, -2):
        table.write_text(f'{{"a": {number}}}', encoding="utf-8")
        with pytest.raises(ModelError, match="ids, which are 0 to 999999999"):
            read_vocabulary(table)


def test_vocabularies_of_lines_and_of_json(tmp_path: Path) -> None:
    """An id alone is the space's."""
    lines, table = tmp_path / "tokens.txt", tmp_path / "config.json"
    lines.write_text("a 1\r\n  2\nsil 3\n", encoding="utf-8")
    assert read_vocabulary(lines) == {"a": 1, " ": 2, "sil": 3}
    table.write_text('{"vocab": {"a": 1}, "hidden": 4}', encoding="utf-8")
    assert read_vocabulary(table) == {"a": 1}
    lines.write_text("a 1\nb\n", encoding="utf-8")
    with pytest.raises(ModelError, match="line 2: 'b' is no 'symbol id'"):
        read_vocabulary(lines)
    table.write_text('["a"]', encoding="utf-8")
    with pytest.raises(ModelError, match="no table of symbols"):
        read_vocabulary(table)


def test_lexicons_with_tones_and_without(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("cat k ae t\nDog d oh 7 8\ncat t\n", encoding="utf-8")
    vocabulary = {"k": 1, "ae": 2, "t": 3, "d": 4, "oh": 5, ".": 6}
    words = read_lexicon(path, vocabulary)
    assert words["cat"] == ((1, 0), (2, 0), (3, 0))
    assert words["dog"] == ((4, 7), (5, 8))
    assert words["."] == ((6, 0),)
    path.write_text("cat k\nowl aw l\n", encoding="utf-8")
    with pytest.raises(ModelError, match="line 2: symbol 'aw' of 'owl' has no id"):
        read_lexicon(path, vocabulary)


def test_words_of_a_lexicon_and_the_longest_ones_in_writing_without_spaces(
    make_vits: Callable[..., Path],
) -> None:
    path = make_vits(frontend="", use_eos_bos="0", add_blank="0")
    text = "don't d o n\n你 n i\n你好 h a o\n"
    path.with_name("lexicon.txt").write_text(text, encoding="utf-8")
    path.with_name("tokens.txt").write_text("d 1\no 2\nn 3\ni 4\nh 5\na 6\n. 7\n", encoding="utf-8")
    model = onnx.load(path)
    for entry in [*model.metadata_props]:
        if entry.key in {"frontend", "use_eos_bos"}:
            model.metadata_props.remove(entry)
    onnx.save(model, path)
    voice: Any = load(path)
    [call] = voice.calibration_calls(["Don't 你好你 unknown."], seed=0)
    assert call["x"].tolist() == [[1, 2, 3, 5, 6, 2, 3, 4, 7]]

"""Suites refuse what would make a result meaningless."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.suites import suite_text
from tts_compress.audio import Audio, write_wav
from tts_compress.errors import EvaluationError, RecipeError
from tts_compress.evaluation import EvaluationOptions, Suite, read_suite
from tts_compress.evaluation.subject import open_subject
from tts_compress.models.base import Prompt, Speaking

_SUITE = """
version = 1
name = "mine"
language = "en-us"
recognizer = "pocketsphinx"
normalizer = "en-v1"
seeds = [0, 7]

utterances = [
  { text = "Hello there." },
  { text = "It costs 5 dollars.", spoken = "it costs five dollars" },
]

[card]
summary = "a"
source = "b"
licence = "c"
composition = "d"
"""


def _read(tmp_path: Path, text: str) -> Suite:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return read_suite(str(path))


def test_a_suite_reads_and_knows_its_transcripts(tmp_path: Path) -> None:
    """The transcript is the spoken form where there is one."""
    suite = _read(tmp_path, _SUITE)
    heard = [suite.transcript(utterance) for utterance in suite.utterances]
    assert heard == ["hello there", "it costs five dollars"]
    assert suite.seeds == (0, 7)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Hello there.", "?!", "'[?]!' has no words after normalisation"),
        ("Hello there.", "Take 2.", "'Take 2.' has digits and needs `spoken`"),
        ("it costs five dollars", "...", "has no words"),
        ("It costs 5 dollars.", "Hello there.", "occurs twice"),
        ("[0, 7]", "[]", "seeds"),
        ("[0, 7]", "[0, 0]", "seeds repeat"),
        ("[0, 7]", "[-1]", "seed -1 is negative"),
        ("pocketsphinx", "ears", "no recognizer named 'ears' .known: .*pocketsphinx"),
        ("en-v1", "en-v0", "no normalizer named 'en-v0' .known: .*en-v1"),
        ("version = 1", "version = 2", "version"),
        ("name =", "nmae =", "nmae"),
    ],
)
def test_a_wrong_suite_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Each rule has its message."""
    assert old in _SUITE
    with pytest.raises(RecipeError, match=message):
        _read(tmp_path, _SUITE.replace(old, new))


def test_the_hash_is_of_what_decides_a_result(tmp_path: Path) -> None:
    """Texts and seeds count; the name and where the texts come from do not."""
    suite = _read(tmp_path, _SUITE)
    renamed = _read(tmp_path, _SUITE.replace('"mine"', '"yours"').replace('"b"', '"elsewhere"'))
    reseeded = _read(tmp_path, _SUITE.replace("[0, 7]", "[0, 8]"))
    reworded = _read(tmp_path, _SUITE.replace("there", "here"))
    assert suite.sha256 == renamed.sha256
    assert suite.with_recognizer("whisper").sha256 != suite.sha256, "also once it was asked for"
    assert suite.with_seeds(None) is suite.with_recognizer(None) is suite
    assert suite.with_recognizer("pocketsphinx:mine").sha256 == suite.sha256, "the place of a model"
    assert len({suite.sha256, reseeded.sha256, reworded.sha256}) == 3
    assert reseeded.sha256 == suite.with_seeds((0, 8)).sha256


def test_other_seeds_are_checked_like_a_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"'mine' with other seeds .*seed -1 is negative"):
        _read(tmp_path, _SUITE).with_seeds((-1,))


def test_ids_need_nobody_to_hear_them(tmp_path: Path) -> None:
    """There is not a word to understand."""
    texts = '{ text = "ids: 5 12/1 7" }, { text = "8 9" }, { text = "4", spoken = "Four." }'
    head, _, _ = _SUITE.replace('"pocketsphinx"', '"none"').partition("utterances = [")
    suite = _read(tmp_path, f"{head}utterances = [{texts}]")
    assert [suite.transcript(one) for one in suite.utterances] == ["5 12/1 7", "8 9", "four"]
    with pytest.raises(RecipeError, match="'Take 2' has digits and needs `spoken`"):
        _read(tmp_path, f"{head}utterances = [{texts}]".replace("8 9", "Take 2"))
    with pytest.raises(RecipeError, match="'ids: 5 12/1 7' has digits and needs `spoken`"):
        _read(tmp_path, f"{head}utterances = [{texts}]".replace('"none"', '"pocketsphinx"'))


def test_texts_of_your_own_need_no_card(tmp_path: Path) -> None:
    assert _read(tmp_path, _SUITE.partition("[card]")[0]).card is None


_PROMPT = """
[prompt]
audio = "voices/one.wav"
text = "some words"
description = "calmly"
"""


@pytest.fixture
def write_suite(tmp_path: Path, chirp: Audio) -> Callable[[str], Path]:
    """Write a suite's file with a table `[prompt]` behind it, and a recording beside it."""
    (tmp_path / "voices").mkdir()
    write_wav(tmp_path / "voices" / "one.wav", chirp)
    write_wav(tmp_path / "voices" / "empty.wav", replace(chirp, samples=chirp.samples[:0]))

    def write(table: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(suite_text(["Hello there."]) + table, encoding="utf-8")
        return path

    return write


def test_a_recording_is_found_beside_the_suite(
    write_suite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From whatever folder the suite is read, and also by an absolute path."""
    recording = tmp_path / "voices" / "one.wav"
    expected = Prompt(audio=recording, text="some words", description="calmly")
    path = write_suite(_PROMPT)
    monkeypatch.chdir(tmp_path / "voices")
    for suite in (read_suite(path), read_suite(path).with_seeds((4,))):
        assert suite.prompt is not None
        assert suite.prompt == expected
    absolute = read_suite(write_suite(_PROMPT.replace("voices/one.wav", str(recording))))
    assert absolute.prompt is not None
    assert absolute.prompt == expected
    described = read_suite(write_suite('[prompt]\ndescription = "calmly"\n'))
    assert described.prompt == Prompt(description="calmly")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('audio = "none.wav"', r"mine\.toml'.* no recording at '.*none\.wav'"),
        ('audio = "voices"', "no recording at"),
        (f'audio = "{"x" * 5000}"', "no recording at"),
        ('audio = "a\\u0000b"', "no recording at"),
        ('audio = "mine.toml"', "no recording at .*mine"),
        ('audio = "voices/empty.wav"', "no recording at .*it is empty"),
        ('audio = ""', r"prompt\.audio"),
        ("audio = 3", r"prompt\.audio"),
        ('text = "alone"', "`prompt.text` is what is said in `prompt.audio`, which is missing"),
        ('description = ""', "`prompt.description` is empty"),
        ("", "`prompt` is empty"),
        ('voice = "x"', r"prompt\.voice"),
    ],
)
def test_a_wrong_prompt_is_refused(
    write_suite: Callable[[str], Path], table: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        read_suite(write_suite(f"[prompt]\n{table}\n"))


def test_the_hash_is_of_the_content_and_not_of_the_place(
    write_suite: Callable[[str], Path], tmp_path: Path, chirp: Audio
) -> None:
    suite = read_suite(write_suite(_PROMPT))
    (tmp_path / "copy.wav").write_bytes((tmp_path / "voices" / "one.wav").read_bytes())
    copied = read_suite(write_suite(_PROMPT.replace("voices/one", "copy")))
    assert copied.sha256 == suite.sha256
    described = read_suite(write_suite(_PROMPT.replace("calmly", "loudly")))
    retold = read_suite(write_suite(_PROMPT.replace("some words", "other words")))
    without = read_suite(write_suite(""))
    write_wav(tmp_path / "copy.wav", replace(chirp, samples=chirp.samples[:8000]))
    other = read_suite(write_suite(_PROMPT.replace("voices/one", "copy")))
    assert len({s.sha256 for s in (suite, described, retold, without, other)}) == 5


def test_suites_without_a_prompt_keep_the_hash_they_had() -> None:
    """Reports of before prompts existed still compare with those of today."""
    assert read_suite("en-quick").sha256.startswith("869f81b0001877b6")


def test_only_a_model_that_speaks_by_prompts_gets_one(
    fakes: Callable[..., Any], tmp_path: Path
) -> None:
    """Its results are stored apart from those without a prompt and those with another one."""
    model = fakes("m")
    prompt = Prompt(description="calmly")

    class Deaf:
        """The same model, which speaks by no prompt."""

        speaking = Speaking()

        def speaking_as(self, _: Speaking) -> "Deaf":
            return self

        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

    deaf: Any = Deaf()
    refs = [
        open_subject(model, tmp_path),
        open_subject(model, tmp_path, prompt),
        open_subject(model, tmp_path, Prompt(description="loudly")),
        open_subject(deaf, tmp_path, prompt),
        open_subject(deaf, tmp_path),
    ]
    assert len({ref.fingerprint for ref in refs[:4]}) == 4
    assert refs[3].fingerprint == refs[4].fingerprint
    assert refs[1].told.prompt == prompt
    assert refs[3].told.prompt is None


def test_options_in_a_spec_make_another_model(fakes: Callable[..., Any], tmp_path: Path) -> None:
    """The same weights with half the steps do not sound the same."""
    model = fakes("m")
    found = set()
    for options in ("", "?nfe_step=4", "?nfe_step=8"):
        model.spec = f"{model.spec.partition('?')[0]}{options}"
        model.files = fakes("m").files
        found.add(open_subject(model, tmp_path).fingerprint)
    assert len(found) == 3


def test_a_prompt_that_a_model_refuses_is_one_error(
    fakes: Callable[..., Any], fast_options: EvaluationOptions, tmp_path: Path
) -> None:
    """The worker ends with it; timing starts workers in the same way."""
    good = open_subject(fakes("good"), tmp_path)
    model: Any = SimpleNamespace(spec="bad")
    bad = replace(
        good, model=model, told=Speaking(prompt=Prompt(audio=Path("x.wav"), text="refused"))
    )
    with pytest.raises(EvaluationError, match="model 'bad': cannot speak by that"):
        bad.start(fast_options)


def test_a_suite_made_in_memory_may_have_one(small_suite: Suite) -> None:
    prompted = small_suite.model_copy(update={"prompt": Prompt(description="calmly")})
    assert prompted.sha256 != small_suite.with_seeds((0, 1)).sha256
    gone = small_suite.model_copy(update={"prompt": Prompt(audio=Path("gone.wav"), text="a")})
    with pytest.raises(RecipeError, match=r"cannot read the recording 'gone\.wav'"):
        assert gone.sha256

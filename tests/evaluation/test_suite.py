"""Suites refuse what would make a result meaningless."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tts_compress.errors import RecipeError
from tts_compress.evaluation import Suite, read_suite

if TYPE_CHECKING:
    from pathlib import Path

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
    assert len({suite.sha256, reseeded.sha256, reworded.sha256}) == 3
    assert reseeded.sha256 == suite.with_seeds((0, 8)).sha256


@pytest.mark.parametrize(
    ("seeds", "message"), [((), "seeds"), ((2, 2), "seeds repeat"), ((-1,), "seed -1 is negative")]
)
def test_other_seeds_are_checked_like_a_file(
    tmp_path: Path, seeds: tuple[int, ...], message: str
) -> None:
    with pytest.raises(RecipeError, match=f"'mine' with other seeds .*{message}"):
        _read(tmp_path, _SUITE).with_seeds(seeds)


@pytest.mark.parametrize("name", ["en-quick", "en-full"])
def test_shipped_suites_read(name: str) -> None:
    """The shipped files keep to the rules."""
    assert name == read_suite(name).name


def test_ids_need_no_origin_and_nobody_to_hear_them(tmp_path: Path) -> None:
    """There is nothing to state of them, nor a word to understand."""
    texts = '{ text = "ids: 5 12/1 7" }, { text = "8 9" }'
    head, _, _ = _SUITE.replace('"pocketsphinx"', '"none"').partition("utterances = [")
    suite = _read(tmp_path, f"{head}utterances = [{texts}]")
    assert [suite.transcript(one) for one in suite.utterances] == ["5 12/1 7", "8 9"]
    with pytest.raises(RecipeError, match="'ids: 5 12/1 7' has digits and needs `spoken`"):
        _read(tmp_path, f"{head}utterances = [{texts}]".replace('"none"', '"pocketsphinx"'))
    with pytest.raises(RecipeError, match=r"no table \[card\]"):
        _read(tmp_path, f"{head}utterances = [{texts}, {{ text = 'Hello.' }}]")


def test_a_suite_without_a_card_is_told_what_one_is(tmp_path: Path) -> None:
    """`card: Field required` said neither what is accepted nor what to do."""
    with pytest.raises(
        RecipeError, match=r"no table \[card\]; add one with summary, source, licence, composition"
    ):
        _read(tmp_path, _SUITE.partition("[card]")[0])

"""Texts as systems' own programs write them."""

from pathlib import Path

import pytest

from tts_compress.config import data_file, read_config
from tts_compress.errors import ModelError
from tts_compress.models.contract.schema import Contract, Tokens
from tts_compress.models.contract.symbols import Speller, normalize, spell_characters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello  there , “you” – e.g., me", 'Hello there, "you" - for example, me.'),
        ("Is it?", "Is it?"),
        ("a@b_c/d\n", "a at b c d."),
        ("ﬁne … é", "fine... e\u0301."),
        ("50 %", "50 %."),
        ("(yes)", "(yes)"),
    ],
)
def test_supertonics_texts(text: str, expected: str) -> None:
    tokens = read_config(data_file("calib/contracts", "supertonic"), Contract).tokens
    assert normalize(text, tokens) == expected


def test_nothing_is_changed_unless_stated() -> None:
    tokens = Tokens(source="ids")
    assert normalize(" A  b , ﬁ", tokens) == " A  b , ﬁ"
    assert normalize("Ab", tokens.model_copy(update={"lowercase": True})) == "ab"


def test_names_of_languages_stand_around_texts_that_have_symbols() -> None:
    ids, around = {"a": 1, "<": 2, ">": 3}, ("<a>", "</a>")
    spelled = spell_characters("ab", ids, around=around)
    assert [symbols.ids for symbols in spelled] == [(2, 1, 3, 1, 2, 1, 3)]
    assert [*spell_characters("b", ids, around=around)] == []


def test_what_a_lexicon_leaves_to_symbols(tmp_path: Path) -> None:
    """Words ran together, those with a hyphen were silent, and digits that are symbols lost."""
    (tmp_path / "tokens.txt").write_text("h 1\no 2\n  3\n\u00a0 4\n5 5\n, 6\n- 7\n", "utf-8")
    (tmp_path / "lexicon.txt").write_text("ho h o\noh o 5\nho-oh o\n", encoding="utf-8")
    tokens = Tokens(source="lexicon", vocabulary="tokens.txt", lexicon="lexicon.txt")
    [symbols] = Speller(tokens, None, (tmp_path,), None).calls("Ho,\n oh x Oh-ho ho-oh ")
    assert symbols.ids == (1, 2, 6, 3, 2, 5, 3, 2, 5, 7, 1, 2, 3, 2)
    assert {*symbols.tones} == {0}


def test_a_damaged_model_of_pieces_is_refused(tmp_path: Path) -> None:
    """Its ids are those of the package, in tests of Pocket-TTS' graphs."""
    pytest.importorskip("sentencepiece")
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    tokens = Tokens(source="pieces", vocabulary="tokenizer.model")
    with pytest.raises(ModelError, match=r"tokenizer.model' is no model of SentencePiece"):
        Speller(tokens, None, (tmp_path,), None).calls("one")

"""The parts of GPT-SoVITS that need no clone: recipes, options, settings, tokens."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tts_compress.errors import ModelError
from tts_compress.models.base import Tokens
from tts_compress.models.gpt_sovits.model import ROLES, join_segments, score_tokens
from tts_compress.models.gpt_sovits.source import (
    GptSovitsOptions,
    GptSovitsSettings,
    read_settings,
    sample_rate_of,
)
from tts_compress.models.options import split_location
from tts_compress.recipes.recipe import find_recipe, schemes_of

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

_END = 4

SETTINGS = GptSovitsSettings(
    version="v2",
    t2s={"data": {"max_sec": 54}, "model": {"EOS": 1024}},
    sovits={"data": {"sampling_rate": 32000}, "model": {}, "train": {}},
    bert={"num_hidden_layers": 24},
    hubert={},
    options={"text_lang": "en"},
)


@pytest.mark.parametrize("scheme", schemes_of("gpt-sovits"))
def test_recipes_are_about_components_that_there_are(scheme: str) -> None:
    parts = {name.partition(".")[0] for name in ROLES}
    for rule in find_recipe("gpt-sovits", scheme).component:
        assert rule.match == "*" or rule.match.partition(".")[0] in parts, rule.match
        if rule.match.startswith("vits."):
            assert any(rule.match.startswith(f"{name}.") for name in ROLES), rule.match


@pytest.mark.parametrize(
    ("name", "operator", "wanted"),
    [
        ("t2s.t2s_transformer.blocks.23.qkv", "Linear", ("int8", "dynamic")),
        ("t2s.ar_predict_layer", "Linear", ("float16", "none")),
        ("t2s.ar_text_embedding.word_embeddings", "Embedding", ("float16", "none")),
        ("vits.dec.ups.0", "ConvTranspose1d", ("int8", "dynamic")),
        ("vits.enc_p.text_embedding", "Embedding", ("float16", "none")),
        ("vits.flow.flows.0.enc.in_layers.0", "Conv1d", ("int8", "dynamic")),
        ("vits.ssl_proj", "Conv1d", ("float16", "none")),
        ("vits.ref_enc.fc.fc", "Linear", ("float16", "none")),
        ("vits.cfm.estimator.transformer_blocks.0.attn.to_q", "Linear", ("int8", "dynamic")),
        ("vits.cfm.estimator.proj_out", "Linear", ("float16", "none")),
        ("vocoder.ups.0.0", "ConvTranspose1d", ("int8", "dynamic")),
        ("bert.bert.encoder.layer.0.output.dense", "Linear", ("int8", "dynamic")),
        ("hubert.encoder.layers.0.attention.q_proj", "Linear", ("int8", "none")),
        ("hubert.feature_extractor.conv_layers.0.conv", "Conv1d", ("float16", "none")),
    ],
)
def test_int8_does_to_each_part_what_its_page_says(
    name: str, operator: str, wanted: tuple[str, str]
) -> None:
    rules = find_recipe("gpt-sovits", "int8").component
    decides = next(rule for rule in rules if rule.covers(name, operator))
    assert (decides.weights, decides.activations) == wanted


def test_settings_are_read_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(SETTINGS.to_json(), encoding="utf-8")
    assert read_settings(path) == SETTINGS
    for text in ("", "[]", "{}", SETTINGS.to_json().replace("v2", "v9"), '{"version": "v2"}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ModelError):
            read_settings(path)


def test_versions_speak_at_their_rates() -> None:
    data = {"data": {"sampling_rate": 32000}}
    assert [sample_rate_of(v, data) for v in ("v1", "v3", "v4")] == [32000, 24000, 48000]
    with pytest.raises(ModelError, match="vocoder"):
        replace(SETTINGS, version="v3")
    with pytest.raises(ModelError, match="sampling rate"):
        sample_rate_of("v2", {"data": {"sampling_rate": "32000"}})


def test_options_stand_behind_a_question_mark() -> None:
    place, given = split_location("a/b.yaml?text_lang=en&top_k=5&temperature=0.7", "top_k=5")
    options = GptSovitsOptions().changed(given, "the test")
    assert place == "a/b.yaml"
    assert options == GptSovitsOptions(text_lang="en", top_k=5, temperature=0.7)
    assert options.stated() == {"text_lang": "en", "top_k": 5, "temperature": 0.7}
    assert split_location("a.ckpt,b.pth", "top_k=5") == ("a.ckpt,b.pth", {})
    for wrong in ({"top_k": 1.5}, {"top_p": 0}, {"prompt_lang": 3}, {"text_split_method": "cut9"}):
        with pytest.raises(ModelError, match=next(iter(wrong))):
            GptSovitsOptions().changed(wrong, "the test")


class _Counting(nn.Module):
    """A decoder of five tokens, whose scores are the tokens it was given so far, and how many."""

    vocab_size = 5
    EOS = _END

    def forward(self, phones: Any, bert: Any, semantic: Any) -> Any:
        assert phones.shape[1] == bert.shape[2]
        said = torch.nn.functional.one_hot(semantic[0], 5).cumsum(0).float()
        return torch.cat([torch.zeros(1, 5), said]).unsqueeze(0)


def test_segments_are_scored_each_after_the_prompt() -> None:
    segments = [(torch.zeros(3).long(), torch.zeros(1024, 3))] * 2
    tokens = join_segments([torch.tensor([1, 2]), torch.tensor([3])], _END)
    assert tokens.ids[:, 0].tolist() == [_END, 1, 2, _END, 3, _END]
    assert tokens.chosen[:, 0].tolist() == [True, True, False, True, False]
    scores = score_tokens(_Counting(), segments, torch.tensor([0, 0]), tokens)
    assert scores.shape == (5, 1, 5)
    np.testing.assert_array_equal(
        scores[:, 0],
        [[2, 0, 0, 0, 0], [2, 1, 0, 0, 0], [2, 1, 1, 0, 0], [2, 0, 0, 0, 0], [2, 0, 0, 1, 0]],
    )
    alone = score_tokens(_Counting(), segments, None, tokens)
    np.testing.assert_array_equal(alone[0, 0], np.zeros(5))


@pytest.mark.parametrize(
    "ids", [[_END], [1, 2, _END], [_END, 1, 2], [_END, 1, _END], [_END, 7, _END]]
)
def test_tokens_of_something_else_are_refused(ids: list[int]) -> None:
    segments: list[Any] = [SimpleNamespace()] * (1 if 7 in ids else 2)
    column = np.array(ids, np.int64)[:, None]
    tokens = Tokens(ids=column, chosen=column[1:] != _END)
    with pytest.raises(ModelError, match="are not ones of this model"):
        score_tokens(_Counting(), segments, None, tokens)

"""Tiny GPT-SoVITS models, compressed and evaluated by the commands that people type.

The models' processes run upstream's own text frontends, on the data that is in the clone; of what
upstream fetches there are tiny stand-ins in the formats of the real ones.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation import tiny_whisper
from tests.graphs import make_node
from tests.suites import suite_text
from tts_compress import read_report
from tts_compress.cli import main
from tts_compress.models.gpt_sovits import GPT_SOVITS
from tts_compress.models.gpt_sovits.loading import Official

_GATES = """
version = 1
name = "tokens"
summary = "s"
gate = [
  { metric = "teacher_forced.agreement", limit = 0.5, direction = "at-least", kind = "absolute" },
  { metric = "damage.frozen.utterances", limit = 0, direction = "at-most", kind = "absolute" },
]
"""


@pytest.fixture
def write_suite(tmp_path: Path, tiny_config: Path) -> Callable[..., Path]:
    """Return a function that writes a suite of two texts, spoken by the tiny recording."""
    kinds = {
        "cmn": ("zh-v1", ("路上小心，早点儿回来！", "乌鸦站在电线杆上叫。"), "今天天气很好。"),
        "en-us": ("en-v1", ("Hello there.", "Shut the gate."), "six seven eight."),
    }

    def write(language: str, recognizer: str) -> Path:
        normalizer, texts, prompt = kinds[language]
        path = tmp_path / f"{language}.toml"
        audio = tiny_config.with_name("reference.wav")
        content = suite_text(
            texts,
            language=language,
            recognizer=recognizer,
            normalizer=normalizer,
            seeds="[3]",
            more=f'[prompt]\naudio = "{audio}"\ntext = "{prompt}"',
        )
        path.write_text(content, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def recognizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a tiny Whisper of all languages, as the command line names it."""
    folder = tiny_whisper.build(tmp_path_factory.mktemp("whisper") / "all", multilingual=True)
    return f"transformers:{folder}"


def test_a_suite_of_another_language_is_one_line(
    tiny_config: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """It lists the languages that upstream speaks, or the one that the spec states."""
    spec = f"gpt-sovits:{tiny_config}"
    for options, suite, accepted in (
        ("", "de-quick", "'zh', 'en', 'ja', 'ko', 'yue'"),
        ("?text_lang=en", "zh-quick", "'en'"),
    ):
        model = f"{spec}{options}"
        arguments = ["--suite", suite, "--output", str(tmp_path / "out")]
        printed = refused("evaluate", model, model, *arguments)
        assert f"speaks {accepted}, and suite '{suite}' is in" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_chinese_is_evaluated_from_the_command_line(
    make_gpt_sovits: Callable[..., Path],
    write_suite: Callable[..., Path],
    recognizer: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By v1, whose frontend needs nothing that the clone and the extra do not bring."""
    spec = f"gpt-sovits:{make_gpt_sovits('v1')}"
    small, out = tmp_path / "int8", tmp_path / "report"
    assert main(["quantize", spec, "--scheme", "int8", "--output", str(small)]) == 0
    arguments = ["--suite", str(write_suite("cmn", "whisper")), "--recognizer", recognizer]
    assert main(["evaluate", spec, str(small), *arguments, "--output", str(out)]) == 0

    found = read_report(out)
    assert (found.suite.language, found.suite.normalizer) == ("cmn", "zh-v1")
    assert "language zh" in found.suite.recognizer
    for side in (found.reference, found.candidate):
        assert side.language == side.settings["language"] == "zh"
        assert side.settings["recording"] == "reference.wav"
        assert side.settings["version"] == "v1"
    # Of Chinese the characters are counted, not the words between spaces.
    assert found.wer.counts.reference.reference_tokens == 18
    assert found.utterances[0].transcript == "路 上 小 心 早 点 儿 回 来"
    assert found.size.ratio > 1.5
    assert found.signal.snr_db is not None
    assert 5 < found.signal.snr_db < 70  # what compression did is heard
    scores = found.teacher_forced
    assert scores is not None
    assert scores.texts == 2
    assert scores.positions > 50
    assert 0.5 < scores.agreement <= 1.0
    assert found.latency.ratio > 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "乌鸦站在电线杆上叫" in page
    assert "Token agreement" in page
    assert "not run alike" not in page

    (tmp_path / "tokens.toml").write_text(_GATES, encoding="utf-8")
    assert main(["gate", str(out), "--gates", str(tmp_path / "tokens.toml")]) == 0
    capsys.readouterr()
    # Random weights understand no word, by which nothing can be judged.
    assert main(["gate", str(out)]) == 1
    assert "nothing was judged" in capsys.readouterr().out


def _write_nltk(folder: Path) -> Path:
    """Write a dictionary and a tagger in NLTK's formats, so small that all words are nouns.

    Upstream replaces the dictionary by its own, and asks the tagger about homographs alone.
    """
    words = folder / "corpora" / "cmudict" / "cmudict"
    words.parent.mkdir(parents=True)
    words.write_text("HELLO 1 HH AH0 L OW1\n", encoding="utf-8")
    tagger = folder / "taggers" / "averaged_perceptron_tagger_eng"
    tagger.mkdir(parents=True)
    content: dict[str, Any] = {"weights": {"bias": {"NN": 1.0}}, "tagdict": {}, "classes": ["NN"]}
    for name, value in content.items():
        path = tagger / f"averaged_perceptron_tagger_eng.{name}.json"
        path.write_text(json.dumps(value), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_english_is_evaluated_from_the_command_line(
    tiny_config: Path,
    write_suite: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where NLTK's data is; where it is not, one line states what to run."""
    pytest.importorskip("pocketsphinx")
    spec, out = f"gpt-sovits:{tiny_config}", tmp_path / "report"
    suite = ["--suite", str(write_suite("en-us", "pocketsphinx")), "--output", str(out)]
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))  # where NLTK's data usually is
    assert main(["evaluate", spec, spec, *suite]) == 2
    (error,) = (line for line in capsys.readouterr().err.splitlines() if "tts-compress" in line)
    assert "python -m nltk.downloader cmudict averaged_perceptron_tagger_eng" in error

    monkeypatch.setenv("NLTK_DATA", str(_write_nltk(tmp_path / "nltk")))
    assert main(["evaluate", spec, spec, *suite]) == 0
    found = read_report(out)
    assert (found.reference.language, found.suite.language) == ("en", "en-us")
    assert found.wer.counts.reference.reference_tokens == 5
    assert found.wer.delta == 0.0
    assert found.signal.snr_db is None or found.signal.snr_db > 60
    assert found.teacher_forced is not None
    assert found.teacher_forced.agreement == 1.0


def _write_g2pw(folder: Path) -> None:
    """Write a network that reads one character in two ways, and knows only how often each is."""
    import onnx
    from onnx import TensorProto, helper

    folder.mkdir()
    (folder / "config.py").write_text("use_mask = True\n", encoding="utf-8")
    (folder / "POLYPHONIC_CHARS.txt").write_text("長\tㄔㄤ2\n長\tㄓㄤ3\n", encoding="utf-8")
    (folder / "MONOPHONIC_CHARS.txt").write_text("路\tㄌㄨ4\n", encoding="utf-8")
    names = {"ㄔㄤ": "chang", "ㄓㄤ": "zhang", "ㄌㄨ": "lu"}
    for name, content in (("bopomofo_to_pinyin_wo_tune_dict", names), ("char_bopomofo_dict", {})):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    words = ("input_ids", "token_type_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["n", "t"]) for n in words]
    inputs += [
        helper.make_tensor_value_info("phoneme_mask", TensorProto.FLOAT, ["n", 2]),
        helper.make_tensor_value_info("char_ids", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["n"]),
    ]
    often = helper.make_tensor("often", TensorProto.FLOAT, [2], [0.7, 0.3])
    node = make_node("Mul", "phoneme_mask often", "probs")
    output = helper.make_tensor_value_info("probs", TensorProto.FLOAT, ["n", 2])
    graph = helper.make_graph([node], "g2pw", inputs, [output], [often])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "g2pW.onnx")


@pytest.mark.slow
def test_an_artifact_speaks_chinese_by_a_clone_without_pretrained_models(
    official: Official, tiny_config: Path, tmp_path: Path
) -> None:
    """Also of v2, whose frontend reads the text encoder's words: the artifact has them."""
    root, small, wav = tmp_path / "clone", tmp_path / "small", tmp_path / "spoken.wav"
    ignored = shutil.ignore_patterns(".git", "pretrained_models", "docs")
    shutil.copytree(official.checkout.root, root, ignore=ignored)
    _write_g2pw(root / "GPT_SoVITS" / "text" / "G2PWModel")
    assert (
        main(["quantize", f"gpt-sovits:{tiny_config}", "--scheme", "fp16", "--output", str(small)])
        == 0
    )
    command = [sys.executable, "-P", "-m", "tts_compress.cli", "synthesize", str(small)]
    recording = ["--reference", str(small / "reference.wav"), "--reference-text", "今天天气很好。"]
    done = subprocess.run(
        [*command, "这条路很长。", "--output", str(wav), *recording],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {GPT_SOVITS.variable: str(root)},
    )
    assert done.returncode == 0, done.stderr
    assert wav.stat().st_size > 32_000

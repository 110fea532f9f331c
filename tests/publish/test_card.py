"""The card of an artifact, with and without figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tts_compress.artifact import MANIFEST_NAME, Manifest, read_manifest, sha256_of
from tts_compress.cli import main
from tts_compress.publish.card import CardFacts, render_card

_SHIPPED = Path(__file__).parents[2] / "eval" / "reports" / "demo-int8.json"


def _header(card: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return found


@pytest.fixture
def report(artifact: Path, tmp_path: Path) -> Path:
    """Return the shipped report, as if it were of this artifact."""
    document = json.loads(_SHIPPED.read_text(encoding="utf-8"))
    document["candidate"]["sha256"] = sha256_of(artifact / "voice.onnx")
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_card_with_figures(
    artifact: Path, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The header is what the hub's own client reads, and the text has the report's numbers."""
    given = ["--report", str(report), "--license", "mit", "--base-model", "anna/voice"]
    assert main(["card", str(artifact), *given]) == 0
    path = artifact / "README.md"
    assert capsys.readouterr().out == f"card: {path}\n"
    card = path.read_text(encoding="utf-8")
    header = _header(card)
    assert header["license"] == "mit"
    assert header["language"] == "en"
    assert header["base_model"] == "anna/voice"
    assert header["base_model_relation"] == "quantized"
    assert header["pipeline_tag"] == "text-to-speech"
    hub = pytest.importorskip("huggingface_hub")
    (result,) = hub.ModelCard(card).data.eval_results
    assert (result.metric_type, result.metric_value) == ("wer", 14.38)
    assert (result.dataset_name, result.metric_name) == (
        "en-full",
        "Word error rate by pocketsphinx",
    )
    for words in (
        "3.7× smaller and",
        "python -m piper --model voice.onnx",
        "| Word error rate | 14.2 % | 14.4 % |",
        "Suite `en-full` (200 texts, 1 seed); recognizer: PocketSphinx",
        "64 texts of 'en', percentile",
        "tts-compress 0.1.0, onnxruntime 1.31.1",
        "## Licence\n\n`mit`.",
    ):
        assert words in card, words


def test_a_card_says_what_is_not_known(artifact: Path) -> None:
    """No figures, no licence, no base model; and no folder of the machine that made it."""
    card = render_card(read_manifest(artifact), CardFacts())
    assert not {"license", "language", "base_model", "model-index"} & _header(card).keys()
    assert "/home/anna" not in card
    assert "1.0 kB, 4.0× smaller" in card
    assert "Not evaluated; `tts-compress evaluate" in card
    assert "the original's licence applies" in card


@pytest.mark.parametrize(
    ("spec", "base"),
    [
        ("parler-tts:parler-tts/parler-tts-mini-v1", "parler-tts/parler-tts-mini-v1"),
        ("parler-tts:/data/mini", None),
        ("voices/voice.onnx", None),
        ("demo", None),
    ],
)
def test_the_base_model_is_a_spec_that_names_one(
    artifact: Path, spec: str, base: str | None
) -> None:
    path = artifact / MANIFEST_NAME
    text = path.read_text(encoding="utf-8").replace("/home/anna/voices/voice.onnx", spec)
    assert _header(render_card(Manifest.from_json(text), CardFacts())).get("base_model") == base


def test_values_cannot_leave_the_header(artifact: Path) -> None:
    """A licence with a line end would begin another key, or end the header."""
    facts = CardFacts(licence="mit\n---\nevil: true", base_model='a"b: c', language="xx: y")
    header = _header(render_card(read_manifest(artifact), facts))
    assert header["license"] == "mit\n---\nevil: true"
    assert header["base_model"] == 'a"b: c'
    assert "evil" not in header


def test_the_report_of_another_model_is_refused(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its figures would be published as this one's."""
    assert main(["card", str(artifact), "--report", str(_SHIPPED)]) == 2
    assert "the report is of 'out/demo-int8' (int8), whose weights are not" in (
        capsys.readouterr().err
    )
    assert not (artifact / "README.md").exists()


def test_a_card_is_replaced_only_when_asked(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody may have written into it."""
    (artifact / "README.md").write_text("mine", encoding="utf-8")
    assert main(["card", str(artifact)]) == 2
    assert "use --force" in capsys.readouterr().err
    assert main(["card", str(artifact), "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"card": str(artifact / "README.md")}
    assert main(["card", str(artifact.parent)]) == 2

"""The page."""

import base64
import hashlib
import io
import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import soundfile

from tts_compress.errors import MissingExtraError
from tts_compress.evaluation.result import Evaluation
from tts_compress.report import html, render_html, render_markdown, summary, summary_rows
from tts_compress.report.pages import draw_svg

Altered = Callable[[dict[str, Any]], Evaluation]

HOSTILE = "<script>alert(1)</script>\"' onload=x <img src=//x> {{ 7*7 }} </style> \u202egnp.exe"
SHOWN = HOSTILE.replace("\u202e", "")
REFERRING = ("src", "href", "xlink:href", "action", "data", "poster", "srcset")
VOID = {"meta", "input", "path", "use", "rect", "br", "link"}


class Page(HTMLParser):
    """A parsed page: its elements, its text, and whether every element was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element; an attribute given twice would be an injected one."""
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element without content."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Check that it is the innermost open element that ends."""
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of every element of one kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self) -> str:
        """Return all the text with single spaces."""
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def page(evaluation: Evaluation) -> Page:
    return Page(render_html(evaluation))


def test_every_element_is_closed(page: Page) -> None:
    assert page.open == []


def test_it_tells_the_verdict_every_measurement_and_every_word(
    page: Page, evaluation: Evaluation
) -> None:
    text = page.text()
    assert summary.verdict(evaluation) in text
    for row in summary_rows(evaluation):
        assert row.label in text
        assert row.change in text
    for utterance in evaluation.utterances:
        assert utterance.text in text
    assert evaluation.suite.recognizer in text
    assert evaluation.candidate.sha256 in text


@pytest.fixture(scope="module")
def mailed_page(mailed: Evaluation) -> Page:
    return Page(render_html(mailed))


@pytest.mark.parametrize("pages", ["page", "mailed_page"])
def test_nothing_is_fetched_from_elsewhere(pages: str, request: pytest.FixtureRequest) -> None:
    """The page must work in ten years, on a plane, and without reporting that it is read."""
    page: Page = request.getfixturevalue(pages)
    for tag, attributes in page.elements:
        for name in REFERRING:
            target = attributes.get(name) or ""
            if tag == "audio" and target.startswith("data:audio/ogg;base64,"):
                continue
            assert ":" not in target, (tag, target)
            assert not target.startswith("/"), (tag, target)
    assert page.named("link") == []
    styles = "".join(page.texts) + "".join(a.get("style") or "" for _, a in page.elements)
    assert "@import" not in styles
    assert "url(" not in styles.replace("url(#", "")
    assert "http:" not in styles
    assert "https:" not in styles


def test_the_policy_admits_the_one_script(page: Page) -> None:
    (policy,) = [m["content"] for m in page.named("meta") if "http-equiv" in m]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "media-src data: 'self' file:;" in policy
    (script,) = [text for text in page.texts if '"use strict"' in text]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    assert len(page.named("script")) == 1


def test_each_identifier_is_there_once_and_each_reference_finds_one(page: Page) -> None:
    """Three drawings share the page: a clip path of one must not cut another."""
    names = [a["id"] for tag, a in page.elements if a.get("id") and tag not in {"path"}]
    assert len(names) == len(set(names))
    known = {a["id"] for _, a in page.elements if "id" in a}
    for _, attributes in page.elements:
        for name in ("href", "xlink:href", "aria-labelledby"):
            target = attributes.get(name) or ""
            if name == "aria-labelledby" and target:
                assert target in known
            if target.startswith("#"):
                assert target[1:] in known


def test_every_picture_has_a_text_alternative_and_every_table_a_caption(page: Page) -> None:
    drawings = page.named("svg")
    assert len(drawings) == 3
    assert all(d["role"] == "img" and d["aria-label"] for d in drawings)
    assert len(page.named("caption")) == len(page.named("table")) == 3
    assert all("scope" in header for header in page.named("th"))
    assert all(a["aria-label"] for a in page.named("audio"))


def test_the_drawings_have_no_colours_of_their_own(page: Page) -> None:
    """A fixed colour would vanish on the dark page."""
    styles = [a.get("style") or "" for _, a in page.elements]
    assert not [style for style in styles if "#" in style.replace("url(#", "")]


def test_every_player_has_its_file(page: Page, evaluation: Evaluation) -> None:
    players = page.named("audio")
    assert {player["preload"] for player in players} == {"none"}
    spoken = [side for said in evaluation.utterances for side in (said.reference, said.candidate)]
    files = sorted(str(side.audio) for side in spoken)
    assert sorted(unquote(player["src"] or "") for player in players) == files


def test_the_audio_is_inside(mailed_page: Page, mailed: Evaluation) -> None:
    """Each player has its own; the page says which utterance has none, and admits no file."""
    page = mailed_page
    players = {str(player["aria-label"]): str(player["src"]) for player in page.named("audio")}
    assert len(players) == 6
    for utterance in mailed.utterances[:-1]:
        for name, speech in (
            ("Reference", utterance.reference),
            ("Compressed", utterance.candidate),
        ):
            source = players[f"{name}, text {utterance.index}, seed {utterance.seed}"]
            stream = base64.b64decode(source.removeprefix("data:audio/ogg;base64,"), validate=True)
            samples, rate = soundfile.read(io.BytesIO(stream))
            assert abs(len(samples) / rate - speech.seconds) < 1e-3
    assert "Utterances with audio inside this page: 3 of 4:" in page.text()
    assert page.text().count("audio not inside") == 1
    (policy,) = [m["content"] for m in page.named("meta") if "http-equiv" in m]
    assert "media-src data:;" in str(policy)


@pytest.mark.usefixtures("undrawn")
def test_exact_files_are_named_beside_the_audio_inside(
    evaluation: Evaluation, mailed: Evaluation
) -> None:
    page = Page(render_html(evaluation.model_copy(update={"opus": mailed.opus})))
    assert len(page.named("audio")) == 48
    assert len([a for a in page.named("a") if str(a["href"]).startswith("wav/")]) == 48
    assert "exact WAV files are beside this page" in page.text()
    assert [str(player["src"])[:5] for player in page.named("audio")].count("data:") == 6


@pytest.mark.parametrize(
    "path", [None, "", "/etc/passwd", "//host/x.wav", "../x.wav", "wav/../../x.wav", "..\\x.wav"]
)
def test_audio_that_is_not_beside_the_report_has_no_address(path: str | None) -> None:
    assert html._relative_url(path) is None


@pytest.mark.parametrize("path", ["javascript:alert(1)", "https://host/x.wav", "a b#?%.wav", '"x'])
def test_an_audio_path_is_nothing_but_a_file_name(path: str) -> None:
    source = html._relative_url(path)
    assert source is not None
    assert not set(source) & set(':?#" ')
    assert unquote(source) == path


_TEXTS = ("utterances.0.text", "candidate.spec", "reference.spec", "suite.name", "suite.recognizer")
_WORDS = ("transcript", "reference.hypothesis", "candidate.hypothesis")
"""Texts of an utterance that are shown word by word."""


@pytest.mark.usefixtures("undrawn")
def test_a_hostile_text_stays_text(altered: Altered, page: Page) -> None:
    changes = {name: f"{HOSTILE} {place}" for place, name in enumerate(_TEXTS)}
    changes |= {f"utterances.0.{name}": f"{name} {HOSTILE}" for name in _WORDS}
    changes["utterances.0.reference.audio"] = "../x.wav"
    changed = Page(render_html(altered(changes)))
    text = changed.text()
    assert [name for place, name in enumerate(_TEXTS) if f"{SHOWN} {place}" not in text] == []
    assert [word for word in (*_WORDS, *SHOWN.split()) if word not in text] == []
    assert "\u202e" not in text
    assert len(changed.named("script")) == 1
    assert changed.named("img") == []
    assert len(changed.named("audio")) == 47
    assert not [a for _, a in changed.elements if any(name.startswith("on") for name in a)]
    assert len(changed.named("style")) == len(page.named("style"))
    assert "49" not in [text.strip() for text in changed.texts]


@pytest.mark.usefixtures("undrawn")
def test_a_hostile_environment_stays_text(altered: Altered) -> None:
    page = Page(render_html(altered({"environment": {HOSTILE: {HOSTILE: [HOSTILE, None]}}})))
    assert len(page.named("script")) == 1
    assert SHOWN in page.text()


@pytest.mark.usefixtures("undrawn")
def test_the_differing_words_are_marked(altered: Altered) -> None:
    words = {
        "transcript": "the lazy dog sleeps here",
        "text": "The lazy dog sleeps here.",
        "reference.hypothesis": "the lazy dog sleeps here",
        "candidate.hypothesis": "the lady dog here now",
    }
    changed = {f"utterances.0.{name}": value for name, value in words.items()}
    text = render_html(altered(changed))
    assert '<span class="sub"><del>lazy</del> <ins>lady</ins></span>' in text
    assert "<del>sleeps</del>" in text
    assert "<ins>now</ins>" in text


@pytest.mark.usefixtures("undrawn")
def test_a_text_that_is_spoken_otherwise_is_spelled_out(altered: Altered) -> None:
    changed = altered(
        {"utterances.0.text": "It is 10 a.m.", "utterances.0.transcript": "it is ten a m"}
    )
    assert "spoken as: it is ten a m" in Page(render_html(changed)).text()


@pytest.mark.parametrize("nothing", [math.nan, math.inf])
def test_what_was_not_measured_does_not_stop_the_page(altered: Altered, nothing: float) -> None:
    names = ("delta", "reference", "candidate")
    rates = ("wer", "cer", "floors.other_seeds", "floors.recognizer")
    changes: dict[str, Any] = {f"{rate}.{name}": nothing for rate in rates for name in names}
    changes |= {f"{rate}.interval": (nothing, nothing) for rate in rates}
    changes |= {
        f"latency.{side}.{name}": nothing
        for side in ("reference", "candidate")
        for name in ("mean_ms", "p50_ms", "p95_ms")
    }
    changes |= dict.fromkeys(
        (
            "latency.ratio",
            "latency.p50_ratio",
            "size.ratio",
            "rtf.candidate.p50",
            "duration.ratio",
            "signal.log_mel_distance_db",
            "floors.other_seeds_log_mel_distance_db",
            "utterances.0.log_mel_distance_db",
            "utterances.0.candidate.seconds",
            "utterances.1.reference.seconds",
        ),
        nothing,
    )
    changes |= {"signal.snr_db": None, "duration.kept": None, "utterances.0.durations_kept": None}
    text = Page(render_html(altered(changes))).text()
    assert "Nothing was measured that could be drawn." in text
    assert " nan" not in text
    assert " inf" not in text


@pytest.mark.usefixtures("undrawn")
def test_the_utterance_that_lost_most_comes_first(altered: Altered) -> None:
    page = Page(render_html(altered({"utterances.7.candidate.word_errors": 10})))
    first, *_ = [row for row in page.named("tr") if "data-order" in row]
    assert (first["data-order"], first["data-seed"]) == ("7", "0")


@pytest.mark.usefixtures("undrawn")
def test_an_evaluation_of_nothing_is_still_a_page(altered: Altered) -> None:
    page = Page(render_html(altered({"utterances": ()})))
    assert "There are no utterances." in page.text()


@pytest.mark.slow
def test_the_same_evaluation_gives_the_same_bytes(evaluation: Evaluation, tmp_path: Path) -> None:
    """This holds in another process with other hash seeds and another matplotlib configuration."""
    source = tmp_path / "report.json"
    source.write_text(evaluation.to_json(), encoding="utf-8")
    (tmp_path / "matplotlibrc").write_text(
        "axes.linewidth: 5\nsvg.fonttype: path\n", encoding="utf-8"
    )
    program = (
        "import sys; import tts_compress.report as report; from tts_compress import read_report; "
        "sys.stdout.reconfigure(encoding='utf-8'); "
        "sys.stdout.write(report.render_html(read_report(sys.argv[1])))"
    )
    made = subprocess.run(
        [sys.executable, "-c", program, str(source)],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": "99", "MATPLOTLIBRC": str(tmp_path)},
    )
    assert made.stdout.decode() == render_html(evaluation)


def test_drawing_leaves_the_users_matplotlib_alone(evaluation: Evaluation) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw_svg("Words", partial(html._draw_words, evaluation))
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("package", ["jinja2", "jiwer", "matplotlib"])
def test_a_missing_extra_is_named(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for module in ("html", "pages", "plots"):
        monkeypatch.delitem(sys.modules, f"tts_compress.report.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*tts-compress\[evaluate\]"):
        render_html(evaluation)


@pytest.mark.usefixtures("undrawn")
def test_the_page_begins_with_name_date_and_gates(altered: Altered) -> None:
    """The title was a path, and whether the voice may be shipped was on no page."""
    page = render_html(altered({"environment.date": "2026-11-23", "signal.snr_db": 3.0}))
    title = "en_US-lessac-medium-int8 against en_US-lessac-medium.onnx, en-quick"
    assert f"<title>{title}</title>" in page
    assert "Evaluation of a compressed voice, 2026-11-23" in page
    assert "Judged by the gates default: " in page
    assert "gates failed; allowed: upper bound of the rise of the word error rate" in page


@pytest.mark.usefixtures("undrawn")
def test_good_news_is_not_in_the_colour_of_an_alarm(altered: Altered) -> None:
    page = render_html(
        altered({"floors.recognizer.interval": (-0.02, 0.02), "wer.interval": (0.001, 0.009)})
    )
    assert 'class="cautions"' not in page
    assert '<p class="note">An inaudible change' in page


@pytest.mark.usefixtures("undrawn")
def test_coarse_words_that_nobody_said_are_masked(altered: Altered) -> None:
    """PocketSphinx guesses, and a page is mailed: `report.json` keeps what it guessed."""
    changes = {
        "utterances.0.candidate.hypothesis": "the boys put the fuck would include",
        "utterances.0.candidate.word_errors": 9,
        "utterances.1.transcript": "a cat and a bitch in the yard",
        "utterances.1.candidate.hypothesis": "a cat and a bitch in the yard",
    }
    found = altered(changes)
    for shown in (render_html(found), render_markdown(found)):
        assert "fuck" not in shown
        assert "f***" in shown.replace("\\", "")
        assert "heard by" in shown or "heard or misheard" in shown
    assert "a bitch" in render_html(found)
    assert "fuck" in found.to_json()

"""Sounds on the page: which are compared, what is drawn of them, and a blind comparison by keyboard in Chromium."""

from __future__ import annotations

import hashlib
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_plugin_report import media
from rlhf_plugin_report.listening import BEFORE_AFTER, EARLY_LATE, SCORES, pairs_of
from rlhf_plugin_report.stored import lines_of
from tests.waiting import wait_for

from .conftest import change_rows, page_of, unpacked


def tone(file: Path, hz: float, seconds: float = 0.3, level: float = 0.1) -> dict[str, Any]:
    """A sound of six harmonics, and its reference in a run's files."""
    time_N = np.arange(round(16_000 * seconds)) / 16_000
    sound = level * sum(np.sin(2 * np.pi * hz * k * time_N) / k for k in range(1, 7))
    file.parent.mkdir(exist_ok=True)
    with wave.open(str(file), "wb") as out:
        out.setparams((1, 2, 16_000, 0, "NONE", ""))
        out.writeframes((sound * 32_000).astype("<i2").tobytes())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"kind": "audio", "path": f"/elsewhere/{file.name}", "sha256": digest}


@pytest.fixture
def spoken(copy: Path) -> Path:
    """A run whose three held-out prompts and one prompt of each step have sounds."""
    asked = [{"role": "system", "content": "calm"}, {"role": "user", "content": "Say it."}]
    rows = [
        {"step": step, "prompt_id": f"p{n}", "prompt": "Say it.", "messages": asked, "completion": f"c{n} {step}"}
        | {"media": [tone(copy / "audio" / f"p{n}-{step}.wav", 150 + 40 * n + step, level=0.05 + 0.1 * n)]}
        for step in (0, 2)
        for n in range(3)
    ]
    (copy / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def attach(row: dict[str, Any]) -> None:
        for n, one in enumerate(row.get("completions", ())):
            one["media"] = [tone(copy / "audio" / f"s{row['step']}-{n}.wav", 120 + 30 * n + row["step"], 0.1)]

    change_rows(copy / "trace.jsonl", attach)
    return copy


def found(run: Path) -> list[Any]:
    return pairs_of(run, lines_of(run / "trace.jsonl")[0], lines_of(run / "samples.jsonl")[0])


def test_held_out_prompts_and_the_ends_of_a_group_are_compared(spoken: Path) -> None:
    pairs = found(spoken)
    heldout = [pair for pair in pairs if pair.kind == BEFORE_AFTER]
    assert [[side.label for side in pair.sides] for pair in heldout] == [["step 0", "step 2"]] * 3
    assert [pair.sides[1].text for pair in heldout] == ["c0 2", "c1 2", "c2 2"]
    assert {pair.voice for pair in heldout} == {"calm"}
    scored = [pair for pair in pairs if pair.kind == SCORES]
    row = next(r for r in lines_of(spoken / "trace.jsonl")[0] if r.get("event") == "prompt")
    scores = {c["media"][0]["path"]: c["score"] for c in row["completions"]}
    best, worst = (side.media["path"] for side in scored[0].sides)
    assert scores[best] == max(scores.values()) > min(scores.values()) == scores[worst]
    assert len({pair.id for pair in pairs}) == len(pairs)
    (spoken / "audio" / "p1-2.wav").unlink()
    assert [pair.sides[0].text for pair in found(spoken) if pair.kind == BEFORE_AFTER] == ["c0 0", "c2 0"]
    change_rows(spoken / "samples.jsonl", lambda r: r["media"][0].update(sha256=r["prompt_id"]))
    assert BEFORE_AFTER not in {pair.kind for pair in found(spoken)}


def test_without_held_out_sounds_an_early_step_is_compared_with_a_late_one(spoken: Path) -> None:
    (spoken / "samples.jsonl").write_text("")
    change_rows(spoken / "trace.jsonl", lambda row: row.update(prompt_id="one") if "prompt_id" in row else None)
    pairs = [pair for pair in found(spoken) if pair.kind == EARLY_LATE]
    assert [[side.label for side in pair.sides] for pair in pairs] == [["step 1", "step 2"]]


def test_sounds_are_bounded_evenly_and_the_rest_is_linked(spoken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (spoken / "audio" / "s1-0.wav").stat().st_size
    heldout = (spoken / "audio" / "p0-0.wav").stat().st_size
    monkeypatch.setattr("rlhf_plugin_report.read.MOST", 6 * heldout + 6 * size)
    page = page_of(spoken)
    files = unpacked(page)[0]["files"]["second"]
    inside = {Path(path).stem for path, one in files.items() if one["url"].startswith("data:")}
    assert {name for name in inside if name.startswith("p")} == {f"p{n}-{step}" for n in range(3) for step in (0, 2)}
    assert {name[:2] for name in inside} == {"p0", "p1", "p2", "s1", "s2"}
    linked = [one for one in files.values() if one["url"].startswith("file:")]
    assert len(linked) + len(inside) == len(files)
    assert f"{len(linked)} images, sounds or videos are links" in page
    media.unembedded(files.values(), 2 * heldout + 500)
    assert sum(one["url"].startswith("data:") for one in files.values()) == 2


class Listener:
    """Somebody with a keyboard in front of the page."""

    def __init__(self, browser: Any, file: Path) -> None:
        self.browser = browser
        browser.get(file.as_uri())
        self.wait("document.documentElement.dataset.ready")
        self.js(
            "window.played = []; window.Real = Audio;"
            " window.Audio = function (url) { played.push(url); return new Real(url); }"
        )
        self.js("URL.createObjectURL = (blob) => { blob.text().then((text) => (window.saved = text)); return '#'; }")

    def js(self, script: str) -> Any:
        return self.browser.execute_script(script)

    def wait(self, condition: str) -> None:
        wait_for(lambda: self.js(f"return {condition}"), condition, 20)

    def press(self, key: str) -> None:
        self.browser.switch_to.active_element.send_keys(key)

    def click(self, words: str) -> None:
        self.js(
            f"[...document.querySelectorAll('#listen button')].find((b) => b.textContent.startsWith({words!r})).click()"
        )

    def hear_both(self) -> list[str]:
        """Play A, then B; their files' contents."""
        for key in "12":
            self.wait("!document.querySelector('#listen .playing')")
            self.press(key)
            self.wait("document.querySelector('#listen .playing')")
        self.wait("!document.querySelector('#listen .answer').disabled")
        return self.js("return played.slice(-2)")


@pytest.mark.slow
def test_a_blind_comparison_by_keyboard_becomes_pairs_and_goes_on_after_a_reload(browser: Any, spoken: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    page = page_of(spoken)
    file = spoken / "report.html"
    file.write_text(page)
    names = {one["url"]: one["file"] for one in unpacked(page)[0]["files"]["second"].values()}
    seen = Listener(browser, file)
    seen.click("Start: before and after")
    assert "step" not in seen.js("return document.getElementById('listen').innerText")
    seen.press(Keys.ARROW_LEFT)
    assert seen.js("return document.querySelector('#listen .meta').textContent").startswith("1 of 3")
    heard = []
    for answer in (Keys.ARROW_LEFT, Keys.ARROW_DOWN):
        heard.append([names[url] for url in seen.hear_both()])
        seen.press(answer)
    assert seen.js("return document.querySelector('#listen .meta').textContent").startswith("3 of 3")
    seen = Listener(browser, file)
    seen.click("Go on: before and after training (2 of 3")
    heard.append([names[url] for url in seen.hear_both()])
    seen.press(Keys.ARROW_RIGHT)
    seen.wait("document.querySelector('#listen .result')")
    text = seen.js("return document.getElementById('listen').innerText")
    assert "no difference 1 times" in text
    assert "A was preferred 1 of 2 times" in text
    seen.click("Download 2 preference pairs")
    seen.wait("window.saved")
    rows = {row["chosen_audio"]: row for row in map(json.loads, seen.js("return saved").splitlines())}
    assert {name: row["rejected_audio"] for name, row in rows.items()} == {
        heard[0][0]: heard[0][1],
        heard[2][1]: heard[2][0],
    }
    for name, row in rows.items():
        n, step = Path(name).stem[1:].split("-")
        assert row["chosen"] == f"c{n} {step}"
        assert row["chosen_is"] == f"step {step}"
        assert row["prompt"][0]["content"] == "calm"


@pytest.mark.slow
def test_sides_are_balanced_and_drawings_are_those_of_the_sound(browser: Any, spoken: Path) -> None:
    file = spoken / "report.html"
    file.write_text(page_of(spoken))
    seen = Listener(browser, file)
    trials = [{"id": f"{n:02d}", "kind": "a" if n < 20 else "b"} for n in range(40)]
    orders = seen.js(f"return [1, 1, 2].map((seed) => Listen.ordered({json.dumps(trials)}, seed))")
    for order in orders:
        assert [sum(t["first"] for t in order if t["kind"] == kind) for kind in "ab"] == [10, 10]
        assert sorted(t["id"] for t in order) == [t["id"] for t in trials]
    assert orders[0] == orders[1] != orders[2]
    firsts = [{t["id"]: t["first"] for t in order} for order in orders]
    assert 8 < sum(firsts[0][k] == firsts[2][k] for k in firsts[0]) < 32
    seen.js("document.getElementById('pairs').scrollIntoView()")
    seen.wait("document.querySelectorAll('#pairs canvas').length >= 2")
    labels = seen.js("return [...document.querySelectorAll('#pairs .sound')].slice(0, 2).map((b) => b.textContent)")
    assert labels == ["0.30 s, median pitch 150 Hz", "0.30 s, median pitch 152 Hz"]
    script = """
      const sine = Float32Array.from({ length: 4096 }, (_, n) => Math.sin((2 * Math.PI * 1000 * n) / 16000));
      const noise = Float32Array.from({ length: 8000 }, () => Math.random() - 0.5);
      const column = [...Sound.spectrogram(sine, 3).slice(0, 256)];
      return [column.indexOf(Math.max(...column)), column[200], Sound.pitch(noise).filter((hz) => hz).length];
    """
    loudest, far, voiced = seen.js(script)
    assert loudest == 32  # 1000 Hz of 31.25 Hz bins
    assert far < -60
    assert voiced == 0

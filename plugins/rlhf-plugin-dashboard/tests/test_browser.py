"""The dashboard in a real Chromium: opens, draws, filters, goes on by itself; its texts are text."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_plugin_dashboard.curves import RunData
from rlhf_plugin_dashboard.serve import Dashboard
from scripts.chromium import show_as
from tests.waiting import wait_for

BLUE, ORANGE = (0, 114, 178), (213, 94, 0)


class Page:
    """The dashboard as its reader sees it."""

    def __init__(self, browser: Any, url: str) -> None:
        self.browser = browser
        browser.get(url)
        self.wait("document.querySelectorAll('#list tr').length > 0 && document.getElementById('state').textContent")

    def js(self, expression: str) -> Any:
        return self.browser.execute_script(f"return {expression}")

    def wait(self, condition: str, seconds: float = 20) -> None:
        wait_for(lambda: self.js(condition), condition, seconds)

    def find(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def type(self, field: str, text: str) -> None:
        self.find(field).clear()
        self.find(field).send_keys(text)

    def visible(self, selector: str) -> list[str]:
        shown = f"[...document.querySelectorAll({json.dumps(selector)})].filter((e) => e.checkVisibility())"
        return self.js(f"{shown}.map((e) => e.innerText)")

    def tick(self, run: str) -> None:
        self.find(f'tr[data-run="{run}"] input').click()

    def colours(self, metric: str) -> dict[tuple[int, ...], int]:
        """Pixels of each colour in a metric's chart."""
        image = pytest.importorskip("PIL.Image")
        chart = self.find(f'figure[data-metric="{metric}"]')
        shot = image.open(io.BytesIO(chart.screenshot_as_png)).convert("RGB")
        return {colour: count for count, colour in shot.getcolors(1 << 20)}

    def wait_for_colour(self, metric: str, colour: tuple[int, ...]) -> None:
        wait_for(lambda: self.colours(metric).get(colour, 0) >= 100, f"{colour} drawn", 20)


@pytest.fixture
def page(browser: Any, serve: Callable[[Path], Dashboard]) -> Callable[[Path], Page]:
    return lambda folder: Page(browser, serve(folder).url)


@pytest.mark.slow
def test_it_draws_the_ticked_runs_over_one_another_with_a_legend(page: Callable[[Path], Page], root: Path) -> None:
    rows = [json.loads(line) for line in (root / "sweep/second" / "metrics.jsonl").read_text().splitlines()]
    moved = [{**row, **({"reward/mean": row["reward/mean"] + 1} if "reward/mean" in row else {})} for row in rows]
    (root / "sweep/second" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in moved))
    seen = page(root)
    assert sorted(seen.js("[...document.querySelectorAll('#list tr')].map((r) => r.dataset.run)")) == [
        "first",
        "sweep/second",
    ]
    assert "4 of 4" in seen.find("#list tr").text
    seen.wait_for_colour("reward/mean", BLUE)
    assert ORANGE not in seen.colours("reward/mean")
    (other,) = {"first", "sweep/second"} - {seen.find("#legend").text}
    seen.tick(other)
    seen.wait_for_colour("reward/mean", ORANGE)
    assert len(seen.visible("#legend li")) == 2
    label = seen.find('figure[data-metric="reward/mean"]').get_attribute("aria-label")
    assert all(f"{run}: reward/mean from" in label for run in ("first", "sweep/second"))
    assert {row.split()[0] for row in seen.visible("#newest li .meta b") if "/" in row or row == "first"} >= {"first"}
    assert "first" in seen.js("decodeURIComponent(location.hash)")
    seen.tick("first")
    assert seen.visible("#legend li") == ["sweep/second"]


def test_charts_wait_for_their_points_however_slowly_runs_are_read(
    browser: Any, serve: Callable[[Path], Dashboard], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    since, runs_are_listed = RunData.since, threading.Event()
    monkeypatch.setattr(RunData, "since", lambda *args: since(*args) if runs_are_listed.wait(60) else None)
    url = f"{serve(root).url}#first&sweep%2Fsecond"
    browser.get(url)
    rows = "return document.querySelectorAll('#list tr').length"
    wait_for(lambda: browser.execute_script(rows) == 2, "both runs listed, before their points are read", 20)
    runs_are_listed.set()
    seen = Page(browser, url)
    seen.wait("document.querySelectorAll('#legend li').length === 2")
    seen.wait_for_colour("reward/mean", ORANGE)  # bokeh warns of a figure without points, which fails the test


@pytest.mark.slow
def test_it_goes_on_by_itself_while_a_run_writes(page: Callable[[Path], Page], growing) -> None:
    growing.append("metrics", 2)
    growing.append("trace", 2)
    seen = page(growing.path)
    seen.js("window.never_reloaded = true")
    label = "document.querySelector('figure[data-metric=\"reward/mean\"]').getAttribute('aria-label')"
    seen.wait(f"({label} || '').endsWith('at step 1')")
    assert seen.visible(".status") == ["running"]
    count = len(seen.visible("#newest li"))
    growing.append("metrics", 1)
    growing.append_half("metrics")
    growing.append("trace", 3)
    warning = {"event": "warning", "step": 2, "stage": "monitor", "monitor": "hacking", "text": "lengths grow"}
    with (growing.path / "trace.jsonl").open("a") as file:
        file.write(json.dumps(warning) + "\n")
    seen.wait(f"{label}.endsWith('at step 2')")
    assert "2 of 4" in seen.find("#list tr").text
    seen.wait(f"document.querySelectorAll('#newest li').length > {count}")
    assert "step 1" not in seen.visible("#newest li .meta")[0]
    assert seen.visible("#warnings li") == ["first, step 2, hacking: lengths grow"]
    seen.wait_for_colour("reward/mean", BLUE)
    growing.append("metrics", 9)
    (growing.path / "summary.json").write_text('{"status": "completed"}')
    seen.wait("document.querySelector('.status').textContent === 'completed'")
    assert "4 of 4" in seen.find("#list tr").text
    assert seen.js("window.never_reloaded")


@pytest.mark.slow
def test_filters_runs_metrics_and_completions(page: Callable[[Path], Page], root: Path) -> None:
    seen = page(root)
    everything = len(seen.visible("figure"))
    seen.type("#metric", "kl")
    assert 0 < len(seen.visible("figure")) < everything + 5
    assert all(
        "kl" in name
        for name in seen.js("[...document.querySelectorAll('figure:not([hidden])')].map((f) => f.dataset.metric)")
    )
    seen.type("#find", "second")
    assert seen.js("[...document.querySelectorAll('#list tr:not([hidden])')].map((r) => r.dataset.run)") == [
        "sweep/second"
    ]
    prompt = seen.visible("#newest .prompt")[0]
    seen.type("#text", prompt.upper())
    assert set(seen.visible("#newest .prompt")) == {prompt}
    seen.type("#text", "no such text")
    assert seen.visible("#newest li") == []
    assert seen.find("#count").text == "0 of the 0 newest"


def test_texts_and_names_are_text_and_damage_is_told(page: Callable[[Path], Page], root: Path) -> None:
    hostile = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
    row = {"event": "prompt", "step": 9, "prompt": hostile, "prompt_id": hostile}
    row["completions"] = [{"text": hostile, "score": 1, "status": hostile, "parts": {hostile: 1}, "detail": hostile}]
    named = root / "<b onclick=1>&amp; \"quoted' #?%41"
    shutil.copytree(root / "first", named)
    (named / "trace.jsonl").write_text(json.dumps(row) + "\n")
    (root / "first" / "plan.json").write_text("{")
    seen = page(root)
    for name in seen.js("[...document.querySelectorAll('#list tr')].map((r) => r.dataset.run)"):
        box = f"[...document.querySelectorAll('#list tr')].find((r) => r.dataset.run === {json.dumps(name)})"
        if name == named.name and not seen.js(f"{box}.querySelector('input').checked"):
            seen.js(f"{box}.querySelector('input').click()")
    seen.wait("[...document.querySelectorAll('#newest .prompt')].some((p) => p.textContent.includes('<img'))")
    assert seen.js("document.querySelectorAll('main img, main script, main b[onclick]').length") == 0
    assert seen.js("document.title") == "Runs"
    assert any("plan.json cannot be read" in text for text in seen.visible(".problem"))
    assert "damaged" in seen.visible(".status")


@pytest.mark.slow
def test_pause_holds_it_and_an_ended_dashboard_is_told(browser: Any, growing) -> None:
    growing.append("metrics", 2)
    command = [sys.executable, "-m", "rlhf_core.cli.main", "dashboard", str(growing.path), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = Page(browser, process.stdout.readline().split()[-1])
        seen.find("#pause").click()
        growing.append("metrics", 1)
        seen.js("document.dispatchEvent(new Event('visibilitychange'))")
        time.sleep(0.3)
        assert "1 of 4" in seen.find("#list tr").text
        assert seen.find("#pause").get_attribute("aria-pressed") == "true"
        seen.find("#pause").click()
        seen.wait("document.querySelector('#list tr').textContent.includes('2 of 4')")
        process.terminate()  # what was started in the background may ignore Ctrl-C
        assert process.wait(10) == 0
    seen.wait("document.getElementById('state').className === 'lost'")
    assert "cannot be reached" in seen.find("#state").text
    errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert all("net::ERR_" in message for message in errors)


@pytest.mark.slow
def test_it_fits_a_phone_and_its_text_can_be_read_in_light_and_dark(page: Callable[[Path], Page], root: Path) -> None:
    seen = page(root)
    seen.wait("Bokeh.documents.length > 0")
    for scheme in ("light", "dark"):
        show_as(seen.browser, 1400, 1000, dark=scheme == "dark")
        ground = colour(seen.js("getComputedStyle(document.body).backgroundColor"))
        for selector in ("body", "th", ".what", "label", ".status", "a[href]", "input"):
            ink = colour(seen.js(f"getComputedStyle(document.querySelector('{selector}')).color"))
            assert contrast(ink, ground) >= 4.5, (scheme, selector)
        soft = "getComputedStyle(document.documentElement).getPropertyValue('--soft').trim()"
        seen.wait(f"Bokeh.documents[0].roots()[0].title.text_color === {soft}")
    show_as(seen.browser, 360, 700, phone=True)
    seen.wait("innerWidth === 360")
    assert seen.js("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
def test_every_control_is_reached_by_the_keyboard_and_has_a_name(page: Callable[[Path], Page], root: Path) -> None:
    seen = page(root)
    reached = []
    for _ in range(12):
        seen.browser.switch_to.active_element.send_keys("\ue004")
        reached.append(seen.js("document.activeElement.id || document.activeElement.textContent"))
    assert {"Skip to the curves", "pause", "report", "find", "run-0", "run-1", "metric", "smooth"} <= set(reached)
    unnamed = "[...document.querySelectorAll('input,button')].filter((e) => !e.textContent && !e.labels?.length)"
    assert seen.js(f"{unnamed}.length") == 0


@pytest.mark.slow
def test_the_full_page_of_the_selected_runs_opens_in_its_sandbox(
    browser: Any, serve: Callable[[Path], Dashboard], root: Path
) -> None:
    metrics = [{"step": n, "reward/mean": 0.1 * n} for n in (1, 2)]
    (root / "first" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    seen = Page(browser, serve(root / "first").url)
    seen.browser.get(seen.find("#report").get_attribute("href"))
    assert "completions" in seen.find("#count").text
    assert seen.js("document.querySelectorAll('figure .bk-Figure').length") > 0


def colour(css: str) -> tuple[float, ...]:
    """Example: ``rgb(28, 30, 33)``"""
    return tuple(float(x) for x in css[css.index("(") + 1 : -1].split(",")[:3])


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Ratio of two colours' luminances, as WCAG 2 defines it."""

    def luminance(rgb: tuple[float, ...]) -> float:
        linear = [x / 255 / 12.92 if x / 255 <= 0.03928 else ((x / 255 + 0.055) / 1.055) ** 2.4 for x in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)

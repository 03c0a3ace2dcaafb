"""The page in a real Chromium: it draws without an error, by keyboard, in the dark, on a phone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.chromium import problems, show_as

from .conftest import change_rows, page_of


def told(chromium: Any, page: str, folder: Path, script: str, size: tuple[int, int] = (1280, 20000)) -> dict:
    """What a script that runs on the ready page writes as JSON into `told`; the page logs no error."""
    from selenium.webdriver.support.ui import WebDriverWait

    add = "const told = document.createElement('pre'); told.id = 'told'; document.body.append(told);"
    file = folder / "page.html"
    script = f"document.addEventListener('ready', () => {{ {add} {script} }});"
    file.write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    show_as(chromium, *size)
    problems(chromium)
    chromium.get(file.as_uri())
    text = "return document.getElementById('told')?.textContent"
    words = WebDriverWait(chromium, 60).until(lambda seen: seen.execute_script(text))
    chromium.execute_script("localStorage.clear()")
    assert [line for line in problems(chromium) if "[bokeh" not in line] == []
    return json.loads(words)


@pytest.fixture(scope="module")
def facts(chromium: Any, page: str, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What a visitor sees who colours tokens in every way, follows two tokens to their source, and searches."""
    script = """
      const input = (name, value) => {
        const box = document.getElementById(name);
        box.value = value;
        box.dispatchEvent(new Event("input"));
      };
      const count = () => document.getElementById("count").textContent;
      const facts = { all: count(), colours: {} };
      document.getElementById("traced").click();
      for (const { value } of document.getElementById("colour").options) {
        input("colour", value);
        const tokens = [...document.querySelectorAll(".token")];
        facts.colours[value] = new Set(tokens.map((t) => t.style.background)).size;
      }
      input("order", "advantage");
      const box = document.querySelector("#list .completion");
      facts.tab = box.tabIndex;
      box.querySelector(".token").click();
      facts.first = document.querySelector(".numbers").textContent;
      box.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
      facts.second = document.querySelector(".numbers").textContent;
      input("step", "2");
      facts.second_step = count();
      input("text", "no such words");
      facts.nothing = count();
      const many = (selector) => document.querySelectorAll(selector).length;
      const look = (left) => {
        const charts = { drawn: many("figure .bk-Figure"), open: many("details[open] figure") };
        if (charts.drawn < charts.open && left) setTimeout(() => look(left - 1), 100);
        else told.textContent = JSON.stringify({ ...facts, ...charts });
      };
      look(300);
    """
    return told(chromium, page, tmp_path_factory.mktemp("browser"), script)


def test_it_draws_every_chart_of_an_open_group(facts: dict) -> None:
    assert facts["drawn"] >= facts["open"] > 4


def test_every_colouring_of_tokens_shows_differences(facts: dict) -> None:
    colours = dict(facts["colours"])
    assert colours.pop("none") == 1
    assert len(colours) == 5
    assert all(number > 1 for number in colours.values()), colours


def test_a_token_is_followed_to_its_source_by_mouse_and_keyboard(facts: dict) -> None:
    assert facts["tab"] == 0
    for words in ("1 of", "trace.jsonl, step", "The 8 scores of this prompt", "divided by the standard deviation"):
        assert words in facts["first"]
    for words in ("2 of", "old log-probability; clip range 0.8 to", "estimator k3", "of the policy's distribution"):
        assert words in facts["second"]


def test_filters_show_only_what_fits(facts: dict) -> None:
    shown = [facts[name] for name in ("all", "second_step", "nothing")]
    assert shown == ["16 of 16 completions", "8 of 8 completions", "0 of 0 completions"]


def test_dark_mode_has_readable_contrast_and_a_phone_no_sideways_scrolling(
    chromium: Any, page: str, tmp_path: Path
) -> None:
    script = """
      const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      const light = (css) => css.match(/[0-9.]+/g).slice(0, 3)
        .reduce((sum, v, i) => sum + linear(v / 255) * [0.2126, 0.7152, 0.0722][i], 0);
      const ground = (node) => {
        for (; node; node = node.parentElement) {
          const colour = getComputedStyle(node).backgroundColor;
          if (!colour.startsWith("rgba")) return colour;
        }
        return "rgb(255, 255, 255)";
      };
      const contrast = (node) => {
        const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
      };
      const names = "h1, h2, dt, dd, .signal, small, .meta, label, button, .status, a, li, td, summary";
      const texts = () => [...document.querySelectorAll(names)].filter((n) => n.getClientRects().length);
      const worst = () => Math.min(...texts().filter((n) => !n.closest(".bk-Figure")).map(contrast));
      const facts = { before: worst(), width: document.documentElement.scrollWidth - innerWidth };
      document.getElementById("theme").click();
      const theme = document.documentElement.dataset.theme;
      told.textContent = JSON.stringify({ ...facts, theme, after: worst() });
    """
    facts = told(chromium, page, tmp_path, script, (390, 900))
    assert facts["theme"] == "dark"
    assert min(facts["before"], facts["after"]) >= 4.5, "WCAG AA"
    assert facts["width"] <= 0


@pytest.mark.slow
def test_curves_by_time_and_tokens_on_a_log_scale_in_colours_that_the_dark_shows(
    chromium: Any, copy: Path, tmp_path: Path
) -> None:
    script = """
      const choose = (name, value) => {
        const box = document.getElementById(name);
        if (box.type === "checkbox") box.checked = value;
        else box.value = value;
        box.dispatchEvent(new Event("input"));
      };
      const drawn = () => Bokeh.documents.flatMap((one) => one.roots()).map((plot) => ({
        label: plot.below[0].axis_label, kind: plot.left[0].type, across: [...plot.renderers[0].data_source.data.x],
        colour: plot.renderers[0].glyph.line_color?.value ?? plot.renderers[0].glyph.line_color,
      }));
      const last = (label) => drawn().filter((plot) => plot.label === label);
      const until = (label, then, left = 300) => {
        if (last(label).length > 3 || !left) then(last(label));
        else setTimeout(() => until(label, then, left - 1), 100);
      };
      document.getElementById("theme").click();
      until("step", (steps) => {
        choose("axis", "seconds");
        until("seconds of training", (seconds) => {
          choose("log", true);
          choose("axis", "tokens");
          until("tokens of training", (tokens) => {
            choose("from", "heldout");
            const list = [...document.querySelectorAll("#list li")].map((row) => row.innerText);
            told.textContent = JSON.stringify({ steps, seconds, tokens, list });
          });
        });
      });
    """
    facts = told(chromium, page_of(copy), tmp_path, script)
    metrics = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in metrics if "loss" in row]
    times = [row["time"]["step"] for row in trained]
    tokens = [row["tokens_generated"] for row in trained]
    assert any(plot["across"] == pytest.approx([times[0], sum(times)], abs=0.01) for plot in facts["seconds"])
    assert any(plot["across"] == [tokens[0], sum(tokens)] for plot in facts["tokens"])
    assert any(plot["across"] == [1, 2] for plot in facts["steps"])
    assert {plot["kind"] for plot in facts["seconds"]} == {"LinearAxis"}
    assert "LogAxis" in {plot["kind"] for plot in facts["tokens"]}
    lines = {plot["colour"] for plot in facts["seconds"] if isinstance(plot.get("colour"), str)}
    assert lines
    assert all(contrast(colour, "#16181b") > 4.5 for colour in lines), lines
    samples = [json.loads(line) for line in (copy / "samples.jsonl").read_text().splitlines()]
    assert len(facts["list"]) == len(samples) > 1
    assert all(row["completion"] in "".join(facts["list"]) for row in samples)


def contrast(one: str, other: str) -> float:
    """By WCAG, of two colours such as ``#0072b2``."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return sum(v * share for v, share in zip(linear, (0.2126, 0.7152, 0.0722)))

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.slow
def test_a_sequence_level_ratio_is_the_completion_s_and_control_characters_show(
    chromium: Any, copy: Path, tmp_path: Path
) -> None:
    """By hand: two tokens whose log-ratios are 0.002 and 0 have the sequence ratio exp(0.001), outside GSPO's range."""
    plan = json.loads((copy / "plan.json").read_text())
    plan["config"]["loss"] |= {"clip_range": 3e-4, "clip_range_high": 4e-4, "importance_level": "sequence"}
    (copy / "plan.json").write_text(json.dumps(plan))
    long = "\u202ereversed \x1b[31mred\x00" + "x" * 10_000

    def change(row: dict) -> None:
        for one in row.get("completions", ()):
            count = one["tokens"]
            one |= {"detail": long, "advantage": 1.0, "score": 2.5}
            if "completion_ids" in one and count > 1:
                one |= {"old_logprobs": [-1.0] * count, "trainer_logprobs": [-0.998, *[-1.0] * (count - 1)]}
                one |= {"ref_logprobs": [-0.498, *[-1.0] * (count - 1)]}
                one |= {"mask": [1, 1, *[0] * (count - 2)]}

    change_rows(copy / "trace.jsonl", change)
    script = """
      document.getElementById("traced").click();
      document.querySelector("#list .token").click();
      const detail = [...document.querySelectorAll("#list details .completion")][0];
      const facts = { numbers: document.querySelector(".numbers").textContent, short: detail.textContent.length };
      facts.start = detail.textContent.slice(0, 40);
      detail.querySelector("button").click();
      facts.long = detail.textContent.length;
      told.textContent = JSON.stringify(facts);
    """
    facts = told(chromium, page_of(copy), tmp_path, script)
    for words in (
        "ratio1.002exp(-0.998 − -1)",
        "of this token alone",
        "ratio of the completion1.001geometric mean of the tokens' ratios",
        "clip range 0.9997 to 1.0004: clipped, no gradient of the reward",
        "KL to the reference0.1487estimator k3, from the reference's log-probability -0.498 and the trainer's",
    ):
        assert words in facts["numbers"], facts["numbers"]
    assert facts["start"].startswith("⟨U+202E⟩reversed ␛[31mred")
    assert facts["short"] < 6100 < 10_000 < facts["long"]


@pytest.mark.slow
def test_a_sound_has_a_player_and_hostile_text_no_element(chromium: Any, copy: Path, tmp_path: Path) -> None:
    (copy / "word.wav").write_bytes(b"RIFF0000WAVE")
    evil = "<img src=x onerror=document.title='pwned'>"

    def attach(row: dict) -> None:
        row["media"] = [{"kind": "audio", "path": "word.wav"}, {"kind": evil, "path": evil}]
        for one in row.get("completions", ()):
            one |= {"text": evil, "detail": evil, "info": {evil: evil}}
            one.pop("completion_ids", None)

    change_rows(copy / "trace.jsonl", attach)
    script = """
      const many = (selector) => document.querySelectorAll(selector).length;
      setTimeout(() => {
        const facts = { players: many("#list audio[controls]"), images: many("img"), title: document.title };
        told.textContent = JSON.stringify(facts);
      }, 1000);
    """
    facts = told(chromium, page_of(copy), tmp_path, script)
    assert facts == {"players": 16, "images": 0, "title": "second"}

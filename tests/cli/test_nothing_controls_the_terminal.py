"""No text from data, model, tool or judge acts on a terminal, a page or a card; JSON keeps what it says."""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.cli import CONTROL, say, visible
from rlhf_core.cli.common import emit_json, set_up_process, table

ROOT = Path(__file__).parents[2]
ATTACKS = {
    "OSC 52, the clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "OSC 0, the title": "\x1b]0;owned\x1b\\",
    "CSI of one byte": "\x9b2J",
    "colour": "\x1b[8mhidden",
    "backspace": "safe\b\b\b\bevil",
    "carriage return": "safe\revil",
    "delete": "a\x7f",
    **{f"U+{ord(c):04X}": c for c in "\u202e\u202d\u2066\u2069\u200e\u200f\u061c\u200b\u2028\ufeff\U000e0041"},
}
KEPT = {"\n", "\t", "\u200c", "\u200d", "\u00ad"}
"""Text, and what Persian, emoji and hyphenation need."""


def test_every_character_that_acts_or_hides_is_in_the_class() -> None:
    acting = {c for c in map(chr, range(0x110000)) if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    bidirectional = {"BN", "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    acting |= {c for c in map(chr, range(0x110000)) if unicodedata.bidirectional(c) in bidirectional}
    acting |= set("\u200e\u200f\u061c")
    assigned = {c for c in acting if unicodedata.category(c) not in ("Cn", "Mn") and c not in KEPT}
    music = set(map(chr, range(0x1D173, 0x1D17B)))  # marks of notes, and Shorthand's: without effect on what follows
    shorthand = set(map(chr, range(0x1BCA0, 0x1BCA4)))
    assert {c for c in assigned - music - shorthand if not CONTROL.fullmatch(c)} == set()
    assert not any(CONTROL.fullmatch(c) for c in KEPT)


@given(st.text(st.characters(), max_size=20))
def test_what_is_printed_has_no_control_character_and_says_the_same_to_json(text: str) -> None:
    shown = visible(text)
    assert not CONTROL.search(shown)
    shown.encode()
    assert visible(shown) == shown
    assert json.loads(visible(json.dumps({text: text}, ensure_ascii=False))) == {text: text}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("colour", [True, False])
def test_no_way_to_print_lets_it_through(attack: str, colour: bool) -> None:
    @click.command()
    def command() -> None:
        say(f"text {attack}", bold=True)
        say(attack, err=True, nl=False)
        table(("name",), [(attack,)])
        emit_json({"text": attack})

    out = CliRunner().invoke(command, color=colour).output
    plain = re.sub(r"\x1b\[[01]m", "", out) if colour else out
    assert not CONTROL.search(plain), repr(plain)
    assert json.loads(out[out.index("{") :])["text"] == attack


def test_a_log_line_neither(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    set_up_process()
    logging.getLogger("rlhf").warning("the judge said %s", "\x1b]0;x\x07\u202e")
    assert r"the judge said \u001b]0;x\u0007\u202e" in capsys.readouterr().err


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_generate_shows_it_and_its_file_keeps_it(tmp_path: Path, rlhf: Callable[..., Any], attack: str) -> None:
    options = ("generate", "--model", "pocket", "--prompt", f"2 + 2? {attack}x", "--max-tokens", "2")
    out = rlhf(*options)
    assert out.code == 0, out.err
    assert not CONTROL.search(out.out + out.err)
    assert visible(attack) in out.out
    assert rlhf(*options, "--out", tmp_path / "rows.jsonl").code == 0
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["messages"][-1]["content"] == f"2 + 2? {attack}x"


def test_an_error_that_quotes_a_text_neither(tmp_path: Path, rlhf: Callable[..., Any]) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": [{"role": ATTACKS["OSC 0, the title"]}]}) + "\n")
    out = rlhf("data", "check", tmp_path / "rows.jsonl")
    assert not CONTROL.search(out.out + out.err)


def test_pages_show_the_same_characters() -> None:
    templates = ("report/rlhf_plugin_report/templates/tools.js", "dashboard/rlhf_plugin_dashboard/templates/lists.js")
    classes = [re.search(r"replace\(/(\[.*?\])/gu", (ROOT / f"plugins/rlhf-plugin-{t}").read_text()) for t in templates]
    for found in classes:
        assert found is not None
        ours = CONTROL.pattern.replace(r"\ud800-\udfff", "")
        assert found[1].replace(r"\u{e0000}-\u{e007f}", r"\U000e0000-\U000e007f") == ours


def test_the_card_shows_them_too() -> None:
    from rlhf_core.config.plan import Plan
    from rlhf_core.runs import StoredRun
    from rlhf_plugin_hub.card import model_card

    config = {"trainer": {"name": "grpo"}, "model": {"path": "\u202e\x1b]0;x\x07model"}, "dataset": {}}
    run = StoredRun(ROOT / "none", Plan(config, (), {}, 0, 1), {"\u200ereward": 1.0}, None, (), ())
    assert not CONTROL.search(model_card(ROOT / "none", run))

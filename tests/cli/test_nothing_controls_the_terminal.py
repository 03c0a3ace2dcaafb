"""No text from data, model, tool or judge acts on a terminal, a page or a card; JSON keeps what it says."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.cli.common import emit_json, table
from rlhf_core.cli.visible import ACTING, TEXT, VisibleStream, visible, visible_output

ROOT = Path(__file__).parents[2]
ATTACKS = {
    "OSC 52, the clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "OSC 0, the title": "\x1b]0;owned\x1b\\",
    "CSI of one byte": "\x9b2J",
    "hidden": "\x1b[8mhidden",
    "backspace": "safe\b\b\b\bevil",
    "carriage return": "safe\revil",
    "delete": "a\x7f",
    **{f"U+{ord(c):04X}": c for c in "\u202e\u202d\u2066\u2069\u200e\u200f\u061c\u200b\u2028\ufeff\U000e0041"},
}


def acts(text: str) -> bool:
    return any(unicodedata.category(c) in ACTING and c not in TEXT for c in text)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.text(st.characters(), max_size=20))
def test_what_is_printed_acts_on_nothing_and_says_the_same_to_json(text: str) -> None:
    shown = visible(text)
    assert not acts(shown)
    shown.encode()
    assert visible(shown) == shown
    assert json.loads(visible(json.dumps({text: text}, ensure_ascii=False))) == {text: text}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("file", [Terminal, io.StringIO])
def test_no_way_to_print_lets_it_through(attack: str, file: type, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = file(), file()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with visible_output():
        click.secho(f"text {attack}", bold=True, fg="red")
        click.echo(attack, err=True, nl=False)
        print(attack, file=sys.stderr)
        sys.stdout.writelines([attack])
        handler = logging.StreamHandler()
        handler.emit(logging.LogRecord("rlhf", logging.WARNING, "", 0, f"the judge said {attack}", None, None))
        table(("name",), [(attack,)])
        emit_json({"text": attack})
    printed = out.getvalue()
    styled = file is Terminal and printed.startswith("\x1b[31m\x1b[1mtext ")
    assert styled == (file is Terminal)
    assert not acts(re.sub(r"\x1b\[(31|[01])m", "", printed) if styled else printed), repr(printed)
    assert not acts(err.getvalue())
    assert json.loads(printed[printed.index("{") :])["text"] == attack
    assert (sys.stdout, sys.stderr) == (out, err)


def test_a_progress_bar_begins_its_line_again_on_a_terminal_only() -> None:
    for file, begins in ((Terminal(), "\r"), (io.StringIO(), "\\r")):
        VisibleStream(file, bars=True).write("\r 10%|#  \r")
        assert file.getvalue() == begins + " 10%|#  \\r"


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_generate_shows_it_and_its_file_keeps_it(tmp_path: Path, rlhf: Callable[..., Any], attack: str) -> None:
    options = ("generate", "--model", "pocket", "--prompt", f"2 + 2? {attack}x", "--max-tokens", "2")
    out = rlhf(*options)
    assert out.code == 0, out.err
    assert not acts(out.out + out.err)
    shown = (
        visible(attack) if attack != ATTACKS["hidden"] else "hidden"
    )  # click takes styles out of what is no terminal
    assert shown in out.out
    assert rlhf(*options, "--out", tmp_path / "rows.jsonl").code == 0
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["messages"][-1]["content"] == f"2 + 2? {attack}x"


def test_an_error_that_quotes_a_text_neither(tmp_path: Path, rlhf: Callable[..., Any]) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": [{"role": ATTACKS["OSC 0, the title"]}]}) + "\n")
    out = rlhf("data", "check", tmp_path / "rows.jsonl")
    assert not acts(out.out + out.err)


def test_pages_and_cards_show_the_same_characters() -> None:
    from rlhf_plugin_report.page import visible as on_page

    templates = ("report/rlhf_plugin_report/templates/tools.js", "dashboard/rlhf_plugin_dashboard/templates/lists.js")
    kept = {{"\n": r"\n", "\t": r"\t"}.get(c, f"\\u{ord(c):04x}") for c in TEXT}
    for template in templates:
        text = (ROOT / f"plugins/rlhf-plugin-{template}").read_text()
        classes = re.search(r"replace\(/\(\?!\[(.*?)\]\)\[(.*?)\]/gu", text)
        assert classes is not None
        assert {*re.findall(r"\\u\w{4}|\\\w", classes[1])} == kept
        assert classes[2] == r"\p{Cc}\p{Cf}\p{Cs}\u2028\u2029", "Zl and Zp have one character each"
    for attack in ATTACKS.values():
        assert not acts(on_page(attack))


def test_the_card_shows_them_too() -> None:
    from rlhf_core.config.plan import Plan
    from rlhf_core.runs import StoredRun
    from rlhf_plugin_hub.card import model_card

    config = {"trainer": {"name": "grpo"}, "model": {"path": "\u202e\x1b]0;x\x07model"}, "dataset": {}}
    run = StoredRun(ROOT / "none", Plan(config, (), {}, 0, 1), {"\u200ereward": 1.0}, None, (), ())
    assert not acts(model_card(ROOT / "none", run))

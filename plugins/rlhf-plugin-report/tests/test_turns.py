"""An episode on the page: turn by turn, with calls, results, status, seconds and the score of each turn."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from .conftest import change_rows, data_of, page_of
from .test_browser import told

TURNS, EACH = 16, 4
HOSTILE = "<img src=x onerror=document.title='pwned'>"


def message(n: int) -> dict[str, Any]:
    if n % 2:
        return {"role": "tool", "content": f"result {n} {HOSTILE}", "tool_call_id": f"call{n:05d}", "name": "search"}
    calls = [{"id": f"call{n:05d}", "type": "function", "function": {"name": "search", "arguments": {"query": n}}}]
    return {"role": "assistant", "content": f"thought {n}", **({"tool_calls": calls} if n < TURNS - 2 else {})}


def turn(n: int, span: tuple[int, int]) -> dict[str, Any]:
    row = {"span": list(span), "role": "tool" if n % 2 else "assistant", "message": message(n)}
    if n == 3:
        row |= {"status": "timeout", "seconds": 2.5, "score": 0.25}
    return row


def as_episode(row: dict[str, Any]) -> None:
    """A completion of 16 turns; the fourth is late, the sixth is of two parallel results, the second without tokens."""
    for one in row.get("completions", ()):
        count = TURNS * EACH
        spans = [(n * EACH, (n + 1) * EACH) for n in range(TURNS)]
        rows = [turn(n, span) for n, span in enumerate(spans)]
        rows.insert(6, turn(5, (6 * EACH, 6 * EACH)))
        one |= {"turns": rows, "tokens": count, "info": {"ended": "answer"}, "advantage": 1.5}
        if "completion_ids" in one:
            one |= {"completion_ids": [5 + n for n in range(count)], "logprobs": [-1.0] * count}
            one |= {"mask": [1 - n // EACH % 2 for n in range(count)]}
            for key in ("trainer_logprobs", "old_logprobs", "ref_logprobs", "entropies", "advantages"):
                one.pop(key, None)


@pytest.fixture(scope="module")
def episodes(run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    copy = Path(shutil.copytree(run, tmp_path_factory.mktemp("turns") / "episodes"))
    change_rows(copy / "trace.jsonl", as_episode)
    return page_of(copy)


def test_the_page_holds_each_turn_small(episodes: str) -> None:
    turns = data_of(episodes)[0]["turns"]
    assert len(turns) == TURNS + 1
    assert turns[0] == {"span": [0, 4], "role": "assistant", "text": "thought 0", "calls": [["search", '{"query": 0}']]}
    assert turns[3] | {"text": ""} == {
        "span": [12, 16],
        "role": "tool",
        "text": "",
        "name": "search",
        "status": "timeout",
        "score": 0.25,
        "seconds": 2.5,
    }


def test_a_turn_of_another_form_makes_its_row_one_that_is_counted(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "odd"))
    change_rows(copy / "trace.jsonl", lambda row: [c.update(turns=[{"role": 3}]) for c in row.get("completions", ())])
    assert data_of(page_of(copy)) == []


@pytest.mark.slow
def test_an_episode_of_sixteen_turns_is_drawn_turn_by_turn(chromium: Any, episodes: str, tmp_path: Path) -> None:
    script = """
      const first = (selector, where) => (where || document).querySelector(selector);
      const all = (selector, where) => [...(where || document).querySelectorAll(selector)];
      document.getElementById("traced").click();
      const item = first("#list > li");
      const turns = all(".turn", item);
      const facts = { turns: turns.length, read: all(".turn.read", item).length, tokens: all(".token", item).length };
      facts.heads = turns.slice(0, 7).map((one) => first("summary", one).textContent);
      facts.calls = first(".call", item).textContent;
      facts.wrote = all(".turn.wrote .token", item).filter((one) => one.style.background).length;
      facts.coloured = all(".turn.read .token", item).filter((one) => one.style.background).length;
      facts.parallel = first(".text", turns[6]).textContent;
      first(".token", turns[15]).click();
      facts.panel = turns[15].nextSibling.textContent;
      const box = document.getElementById("text");
      box.value = "result 13";
      box.dispatchEvent(new Event("input"));
      facts.found = document.getElementById("count").textContent;
      document.getElementById("traced").click();
      const bare = all("#list > li").find((one) => !first(".token", one));
      facts.untraced = bare && all(".turn .text", bare).map((one) => one.textContent);
      facts.title = document.title;
      told.textContent = JSON.stringify(facts);
    """
    facts = told(chromium, episodes, tmp_path, script)
    assert (facts["turns"], facts["read"], facts["tokens"]) == (TURNS + 1, 9, TURNS * EACH)
    assert facts["heads"][0].startswith("1 assistant")
    assert "4 tool search" in facts["heads"][3]
    assert all(part in facts["heads"][3] for part in ("timeout", "seconds 2.5", "turn score 0.25"))
    assert "ok" in facts["heads"][1]
    assert facts["calls"] == 'search {"query": 0}'
    assert (facts["wrote"], facts["coloured"]) == (TURNS * EACH // 2, 0)
    assert facts["parallel"].startswith("result 5")
    assert "written by: assistant" in facts["panel"]
    assert facts["found"].startswith(("4 of 4", "8 of 8", "16 of 16", "2 of 2"))
    assert facts["title"] == "episodes"
    if facts.get("untraced"):
        assert facts["untraced"][0] == "thought 0"

"""Transcripts of an evaluation on one page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rlhf_plugin_agents.agents.config import AGENTS
from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_plugin_agents.harness import Job, evaluate
from rlhf_plugin_agents.page import MOST, page
from rlhf_plugin_agents.suites.config import AgentBenchMini, Injection


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)


def test_the_page_holds_messages_calls_results_and_verdicts(ctx: Any, tmp_path: Path) -> None:
    job = Job(AgentBenchMini(max_per_category=1), AGENTS["react"](), ScriptedConfig(script="wrong"))
    folder, _ = evaluate(job, ctx, tmp_path / "wrong")
    text = (folder / "report.html").read_text()
    assert text.count("<details") == 3
    assert text.count('class="wrong"') == 3
    assert "Answer: 1899" in text
    right, _ = evaluate(Job(Injection(), AGENTS["react"](), ScriptedConfig()), ctx, tmp_path / "right")
    text = (right / "report.html").read_text()
    assert text.count('class="right"') == 20
    assert "call: documents {&quot;title&quot;: &quot;Harl Lighthouse&quot;}" in text
    assert "stopped by answer" in text


def test_what_strangers_say_is_text_and_long_pages_keep_what_went_wrong() -> None:
    evil = "<script>alert(1)</script>\u202e<img src=x onerror=alert(1)>"
    call = {"id": "c1", "name": "t", "arguments": {}, "result": evil, "status": "error", "seconds": 0.5}
    said = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": evil, "arguments": {"a": evil}}}]}
    messages = [{"role": evil, "content": evil}, said, {"role": "tool", "content": evil, "tool_call_id": "c1"}]
    trajectory = {"messages": messages, "calls": [call], "turns": [], "error": evil}
    row = {
        "task": evil, "trial": 0, "right": True, "value": 1.0, "process": None, "detail": evil, "answer": evil,
        "calls": 1, "prompt_tokens": 1, "completion_tokens": 1, "cost_usd": 0.0, "seconds": 0.0, "stop_reason": evil,
        "trajectory": trajectory,
    }  # fmt: skip
    part = {
        "tasks": 1, "right": {"value": 1.0}, "process": None, "calls": 1.0, "missing": 0, "stop_reasons": {evil: 1}
    }  # fmt: skip
    settings = {k: {"name": evil} for k in ("suite", "agent", "backend")}
    text = page(settings, {**part, "categories": {evil: part}}, [*[row] * MOST, {**row, "right": False}])
    tags = Tags()
    tags.feed(text)
    assert not {"script", "img"} & set(tags.tags)
    assert "\u202e" not in text
    assert not re.search(r"(src|href)=", re.sub(r"&[a-z#0-9]+;", "", text).replace("src=x", ""))
    assert "1 more are in rows.jsonl" in text
    assert text.count('class="wrong"') == 1  # though it came last
    assert text.count("· error") == MOST

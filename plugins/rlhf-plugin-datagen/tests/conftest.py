"""A judge that is a rule, so that verdicts are known; installed as a distribution of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CODE = """
import json, os, re, time
from rlhf_core.config import ComponentConfig, Config
from rlhf_core.rewards import JudgeReply, ScoreStatus

class Price(Config):
    input: float = 1.0
    output: float = 5.0

class RuleConfig(ComponentConfig):
    name: str = "rule"
    manner: str = "rule"
    delay_s: float = 0.0
    price: Price = Price()
    log: str = ""

    def build(self, ctx):
        return Rule(self)

def part(text, tag):
    return re.search(f"<{tag}-[0-9a-f]+>\\\\n(.*?)\\\\n</{tag}-", text, re.DOTALL)[1]

class Rule:
    def __init__(self, config):
        self.config = config

    def ask(self, requests):
        time.sleep(self.config.delay_s)
        if self.config.log:
            with open(self.config.log, "a") as file:
                file.writelines(r.id + "\\n" for r in requests)
        return [self.reply(r) for r in requests]

    def reply(self, request):
        if self.config.manner == "down" or self.is_flaky(request):
            return JudgeReply.failed(ScoreStatus.TIMEOUT, "no answer in 1 s")
        if self.config.manner.startswith("beyond:") and self.number(request) < int(self.config.manner[7:]):
            return JudgeReply.failed(ScoreStatus.ERROR, "the question is too long")
        if self.config.manner == "refuses":
            return JudgeReply(None, ScoreStatus.MISSING, "no text: it stopped for 'refusal'", 100, 1, 0.00015)
        text = self.answer(request)
        return JudgeReply(text, input_tokens=100, output_tokens=10, cost_usd=0.00015)

    def is_flaky(self, request):
        return self.config.manner == "flaky" and "/3" in request.id and not os.path.exists(self.config.log + ".up")

    def number(self, request):
        return int(re.search(r"/(\\d+)#", request.id)[1])

    def answer(self, request):
        text, manner = request.messages[-1]["content"], self.config.manner
        if manner == "prose":
            return "I like the first one."
        if "<response_a-" in request.messages[0]["content"]:
            text = request.messages[0]["content"]
            a, b = len(part(text, "response_a")), len(part(text, "response_b"))
            better = "A" if manner == "first" or a < b else "tie" if a == b else "B"
            if manner == "repairs" and len(request.messages) == 1:
                return "Shorter is better."
            return "So: " + json.dumps({"better": better, "why": "principle 6"})
        if "<critique-" in text:
            return part(text, "draft").upper()
        if "<draft-" in text:
            return "Louder."
        if "<response-" in text:
            words = len(part(text, "response").split())
            top = 9 if manner == "off_scale" else 5
            return json.dumps({"grades": {"short": top if words < 4 else 1, "kind": 3}, "why": "counted"})
        return f"answer {request.seed % 7} " * (1 + request.seed % 3)
"""


@pytest.fixture
def rule_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the distribution, on the import path of this process and of its children."""
    folder = tmp_path / "acme"
    info = folder / "acme_judge-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "acme_judge_for_tests.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-judge\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf.judge]\nrule = acme_judge_for_tests:RuleConfig\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file of twelve prompts with the ids ``questions/0`` to ``questions/11``."""
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"id": str(i), "prompt": f"Question {i}?"}) + "\n" for i in range(12)))
    return path

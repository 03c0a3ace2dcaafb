"""Judges that propose programs, installed for a test: one that climbs by rule, one that is a real model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)

JUDGES = '''
import json, os, re, signal
from rlhf_core.config import ComponentConfig, RlhfError
from rlhf_core.rewards import JudgeReply, JudgeRequest, ScoreStatus

class ClimberConfig(ComponentConfig):
    """Turns the last valid program into one with more vectors; every third answer of a conversation is wrong."""
    name: str = "climber"
    silent: bool = False
    kill_at: str = ""
    fail_at: str = ""
    cost: float = 0.001
    log: str = ""
    after: str = ""
    def build(self, ctx):
        return Climber(self)

class Climber:
    def __init__(self, config):
        self.config = config

    def ask(self, requests):
        if self.config.log:
            with open(self.config.log, "a") as file:
                file.writelines(json.dumps([r.id, r.messages[-1]["content"]]) + "\\n" for r in requests)
        replies = []
        for request in requests:
            name = request.id.split("/", 1)[1]
            if self.config.kill_at == name:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.config.fail_at == name:
                raise RlhfError("the judge is gone")
            if self.config.silent:
                replies.append(JudgeReply.failed(ScoreStatus.ERROR, "no such model"))
            else:
                replies.append(JudgeReply(self.answer(request), input_tokens=1, cost_usd=self.config.cost))
        return replies

    def answer(self, request):
        turns = [m["content"] for m in request.messages]
        grown = [t for t in turns if t.startswith("```python\\nN = ")]
        n = int(re.search(r"N = (\\d+)", grown[0])[1]) if grown else 22
        if "failed with this error" not in turns[-1] and request.seed % 3 == 0:
            n, extra = n + 1, "points[0] = points[1]"
        else:
            n, extra = n + 1 + request.seed % 2, ""
        return f"I add vectors.\\n```python\\nN = {n}\\n" + PROGRAM + extra + "\\n```\\n" + self.config.after

PROGRAM = """
from itertools import combinations, product
points = [[s * 2 * (i == j) for j in range(11)] for i in range(11) for s in (1, -1)]
blocks = []
for b in combinations(range(11), 4):
    if all(len(set(b) & set(a)) < 3 for a in blocks):
        blocks.append(b)
for b in blocks:
    for signs in product((1, -1), repeat=4):
        v = [0] * 11
        for i, s in zip(b, signs):
            v[i] = s
        points.append(v)
points = points[:N]
"""

class NativeConfig(ComponentConfig):
    """The pocket model through the native engine: a real model, which knows nothing of programs."""
    name: str = "native_pocket"
    def build(self, ctx):
        return Native()

class Native:
    def __init__(self):
        from rlhf_core.models import ModelConfig
        from rlhf_core.models.load import load_policy
        from rlhf_core.models.prompt_format import Formatter
        from rlhf_plugin_native.engine import NativeEngine
        loaded = load_policy(ModelConfig(path="pocket"))
        self.formatter = Formatter(loaded.tokenizer, ModelConfig().prompt_format)
        self.context = loaded.context
        self.engine = NativeEngine(loaded.model, loaded.tokenizer, loaded.context)

    def ask(self, requests):
        from rlhf_core.rollouts import RolloutRequest, SamplingParams
        if not requests:
            return []
        prompt_ids = [self.formatter.encode(r.messages[-1:])[-64:] for r in requests]
        rollout_requests = [RolloutRequest(r.id, ids, 0, r.seed, 16) for r, ids in zip(requests, prompt_ids)]
        sampling = SamplingParams(max_tokens=16, temperature=requests[0].temperature)
        rollouts = self.engine.generate(rollout_requests, sampling, 0)
        return [JudgeReply(r.text, output_tokens=len(r.completion_ids)) for r in rollouts]
'''


@pytest.fixture
def judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution with judges ``climber`` and ``native_pocket``; yields its folder, for ``PYTHONPATH``."""
    folder = tmp_path / "judges"
    info = folder / "discover_judges-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "discover_judges.py").write_text(JUDGES)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: discover-judges\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rlhf.judge]\nclimber = discover_judges:ClimberConfig\nnative_pocket = discover_judges:NativeConfig\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("discover_judges", None)

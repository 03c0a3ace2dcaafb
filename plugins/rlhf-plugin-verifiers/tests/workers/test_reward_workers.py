"""A reward that hangs or crashes costs a score, not the run, where it is called in worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.plugins.registry import Registry
from rlhf_core.types.errors import PluginError
from rlhf_core.types.rollouts import Sample, ScoreStatus
from rlhf_plugin_verifiers.reward_config import RewardWorkersConfig
from rlhf_plugin_verifiers.workers.pool import RewardWorkers
from rlhf_testing import make_context

MODULE = """
import os, re, time
from rlhf_core.config import ComponentConfig
from rlhf_core.rewards import Score

class OddConfig(ComponentConfig):
    name: str = "odd"
    stateful: bool = False
    def build(self, ctx):
        return Stateful() if self.stateful else Odd()

class Odd:
    def score(self, samples):
        return [getattr(self, s.completion)() for s in samples]
    def good(self): return Score(1.0, {"pid": float(os.getpid())})
    def regex(self): re.match(r"(a+)+$", "a" * 40 + "b")
    def crash(self): os._exit(3)
    def wrong(self): return 0.5

class Stateful(Odd):
    def state_dict(self): return {"parts": {"mean": [0.0]}}
    def load_state_dict(self, state): pass
"""


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RewardWorkers]]:
    """``workers(stateful=True)``: the odd reward in one worker, half a second for each completion."""
    (tmp_path / "acme_odd.py").write_text(MODULE)
    info = tmp_path / "acme_odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf.reward]\nodd = acme_odd:OddConfig\n")
    monkeypatch.syspath_prepend(tmp_path)
    made: list[RewardWorkers] = []

    def make(**settings: Any) -> RewardWorkers:
        registry = Registry(disabled=())
        config = RewardWorkersConfig(of=registry.config("reward", "odd", settings), workers=1, timeout_s=0.5)
        made.append(config.build(make_context(registry=registry)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_call_that_hangs_or_crashes_costs_one_score(
    workers: Callable[..., RewardWorkers], sample: Callable[..., Sample]
) -> None:
    completions = ["good", "regex", "crash", "wrong", "good"]
    scores = workers().score([sample(text) for text in completions])
    statuses = [s.status for s in scores]
    error = ScoreStatus.ERROR
    assert statuses == [ScoreStatus.OK, ScoreStatus.TIMEOUT, error, error, ScoreStatus.OK]
    assert scores[1].detail.endswith("gave no verdict on test/0 in 0.5 s")
    assert scores[1].detail.startswith("reward 'odd' (")
    assert ") died on test/0" in scores[2].detail
    assert scores[0].value == scores[4].value == 1.0
    assert scores[0].parts["pid"] != os.getpid()


def test_a_reward_with_a_state_is_refused(workers: Callable[..., RewardWorkers]) -> None:
    with pytest.raises(PluginError, match="has state") as caught:
        workers(stateful=True)
    assert "trainer.reward_workers=0" in str(caught.value)


def test_the_core_alone_trains_and_refuses_workers(rlhf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_DISABLE_PLUGINS", "rlhf-plugin-verifiers")
    settings = ["steps=1", "rollout_batch_size=4", "group_size=4", "eval_samples=0", "sampling.max_tokens=4"]
    words = ["train", "--algo", "grpo", "--reward", "programmatic", "--dataset", "pocket/arithmetic"]
    words += [word for setting in settings for word in ("--set", f"trainer.{setting}")]
    for refused in (["--dry-run"], ["--run-dir", "refused"]):
        done = rlhf(*words, *refused, "--set", "trainer.reward_workers=2")
        assert done.code == 2
        assert "trainer.reward_workers=2 needs rlhf-plugin-verifiers\n  why: it is not installed" in done.err
        assert "pip install rlhf-plugin-verifiers, or enable it" in done.err
    assert not Path("refused").exists()
    assert rlhf(*words, "--run-dir", "run").code == 0

"""Verifiers of code in worker processes: late programs, killed workers, deadlines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import BuildContext
from rlhf_core.plugins.registry import Registry
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_verifiers.reward_config import VerifierRewardConfig

MakeSample = Callable[..., Sample]
ADD = "def add(a, b):\n    return a + b\n"


def in_the_pool(options: dict[str, Any], sample: MakeSample) -> list[Score]:
    """Verdicts on a right, an endless, a wrong and a right program."""
    registry = Registry(disabled=())
    config = VerifierRewardConfig.model_validate(options, context={"registry": registry})
    reward = config.build(BuildContext(config=None, registry=registry, seed=0))  # pyright: ignore[reportArgumentType]
    row = {"test_list": ["assert add(1, 2) == 3"], "test_imports": []}
    try:
        return reward.score([sample(c, **row) for c in (ADD, "while True: pass", "add = None", ADD)])
    finally:
        reward.close()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
def test_in_the_pool_a_late_program_has_a_score(sample: MakeSample) -> None:
    options = {"verifier": {"name": "mbpp", "sandbox": {"timeout_s": 0.5}}, "workers": 2}
    scores = in_the_pool(options, sample)
    assert [s.value for s in scores] == [1.0, 0.0, 0.0, 1.0]
    assert scores[1].parts["timeout"] == 1.0


@pytest.mark.slow
def test_a_worker_killed_inside_the_sandbox_spoils_nothing(sample: MakeSample) -> None:
    options = {"verifier": {"name": "mbpp", "sandbox": {"timeout_s": 20.0}}, "workers": 1, "timeout_s": 1.0}
    scores = in_the_pool(options, sample)
    assert [s.value for s in scores] == [1.0, None, 0.0, 1.0]
    assert scores[1].status is ScoreStatus.TIMEOUT


def test_a_deadline_below_the_verifiers_own_is_refused(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"p{n}", "test_list": ["assert f()"]}) + "\n" for n in range(60)))
    args = (
        "train",
        "--algo",
        "grpo",
        "--reward",
        "verifier",
        "--set",
        "reward.verifier=mbpp",
        "--dataset",
        file,
        "--dry-run",
    )
    code, output = command(*args, "--set", "reward.timeout_s=3")
    assert code == 2
    assert "reward.timeout_s" in output
    code, output = command(*args)
    assert code == 0, output
    assert "programs run in: " in output
    file.write_text(json.dumps({"prompt": "p", "test_list": ["assert f("]}) + "\n")
    code, output = command(*args)
    assert code == 2
    assert "rows.jsonl" in output
    assert "SyntaxError" in output

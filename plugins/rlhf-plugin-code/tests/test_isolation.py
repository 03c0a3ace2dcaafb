"""How programs are isolated, as the doctor and a run report it; running without isolation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.plugins.registry import Registry
from rlhf_plugin_code.sandbox import Sandbox


def test_the_doctor_says_how_programs_are_isolated(sandbox: Sandbox) -> None:
    from rlhf_plugin_preflight.cli.doctor import abilities

    assert [f.detail for f in abilities() if f.what == "rlhf-plugin-code"] == [f"sandbox: {sandbox.isolation}"]


def test_unsafe_execution_is_one_option_away(
    command: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlhf_plugin_code import preflight

    real = Sandbox._try
    monkeypatch.setattr(
        Sandbox,
        "_try",
        lambda self, prefix, isolated: {"refused": "no namespaces"} if isolated else real(self, prefix, isolated),
    )
    preflight._isolation.cache_clear()
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"p{n}", "test_list": ["assert f()"]}) + "\n" for n in range(60)))
    args = ("train", "--algo", "grpo", "--reward", "mbpp", "--dataset", file, "--dry-run")
    code, output = command(*args)
    assert code == 2
    assert "this machine offers no isolation" in output
    code, output = command(*args, "--unsafe-local-execution")
    assert code == 0
    assert "programs run in: none: programs run with this user's rights" in output
    preflight._isolation.cache_clear()


def test_unsafe_execution_reaches_every_sandbox_and_nothing_else() -> None:
    from rlhf_core.cli.options import resolve_options

    names = {"algo": "grpo", "reward": "mbpp", "unsafe_local_execution": True}
    rows = "dataset={sources: [{name: pocket/arithmetic, reward: {name: verifier, verifier: mbpp}}]}"
    config: Any = resolve_options(Registry(), (), (rows,), names).config
    plain: Any = resolve_options(Registry(), (), (rows,), {**names, "unsafe_local_execution": False}).config
    for reward in (config.reward, config.dataset.sources[0].reward):
        assert reward.verifier.sandbox.unsafe_local_execution
    assert config.trainer == plain.trainer
    assert not plain.reward.verifier.sandbox.unsafe_local_execution
    with pytest.raises(ConfigError, match="has no effect"):
        resolve_options(Registry(), (), ("reward.verifier=numeric",), {**names, "reward": "verifier"})


@pytest.mark.slow
def test_a_run_keeps_how_its_programs_were_isolated(
    sandbox: Sandbox, command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    file, run = tmp_path / "rows.jsonl", tmp_path / "run"
    rows = [{"id": i, "prompt": f"Write f{i}.", "tests": [f"assert f{i}(1) == 2"]} for i in range(8)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, output = command(
        "train",
        "--algo",
        "grpo",
        "--reward",
        "asserts",
        "--dataset",
        file,
        "--run-dir",
        run,
        "--set",
        "trainer.steps=1",
        "--set",
        "trainer.rollout_batch_size=4",
        "--set",
        "trainer.group_size=2",
        "--set",
        "trainer.sampling.max_tokens=4",
    )
    assert code == 0, output
    assert f"programs run in: {sandbox.isolation}" in output
    expected = {"verifier asserts": {"isolation": sandbox.isolation}}
    assert json.loads((run / "plan.json").read_text())["conditions"] == expected
    assert json.loads((run / "summary.json").read_text())["conditions"] == expected
    first = json.loads((run / "trace.jsonl").read_text().splitlines()[0])
    assert first == {"step": 0, "stage": "plan", "part": "verifier asserts", "isolation": sandbox.isolation}
    assert "it has steps 1 to 1" in command("trace", "show", run, "--step", "2")[1]

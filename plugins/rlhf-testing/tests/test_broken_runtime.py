"""The checks of engines, strategies, benchmarks, hooks, judges and commands catch what breaks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import broken_runtime as broken
import pytest
from broken_components import Broken

import rlhf_testing as kit
from rlhf_core.plugins.hooks import HOOK_NAMES
from rlhf_testing.hooks import sample_events

ENGINE = {
    "seed": "different seeds",
    "random": "same seeds give the same",
    "neighbours": "does not depend on its neighbours",
    "limit": "max_tokens",
    "greedy": "temperature 0",
    "stop": "stop string",
    "temperature": "at the sampling temperature",
    "version": "policy version",
    "logprobs": "at the sampling temperature",
    "text": "decoded completion",
    "prompt": "prompt_ids and seed",
    "finish": "LENGTH only",
    "change": "leaves what it is given alone",
    "order": "one Rollout per request",
    "last context": "after an earlier turn of its episode",
    "count": "one Rollout per request",
}
STRATEGY = {
    "mean": "add up",
    "clip": "makes gradients smaller",
    "norm": "norm before clipping",
    "sum": "sum_over_ranks",
    "gather": "a list of 1",
    "exchange": "a list of 1",
    "names": "weights by name",
    "look-up": "full_tensor.. and full_shape",
    "shape": "full_tensor.. and full_shape",
    "everywhere": "full_tensor.. gives every rank",
    "optimizer": "survives saving",
    "prepare": "prepare.. of strategy 'broken' raised OutOfMemoryError",
    "lacks": "no barrier",
    "forward": "sharded_forward.. equals one of the whole weights",
    "loading": "has, once it is prepared and read, the weights of its files",
    "group": "never meet those of another thread",
    "alone": "comes out on every rank",
}
BENCHMARK = {
    "seeds": "share a seed",
    "random": "same metrics",
    "version": "policy version",
    "none": "samples from the engine",
    "state": "same metrics",
    "nan": "finite numbers",
    "text": "finite numbers",
    "number": "metrics by name",
}
HOOKS = {
    broken.UnknownHooks: "every hook exists",
    broken.WrapperHooks: "none is a wrapper",
    broken.ChangingHooks: "leaves its event alone",
    broken.RaisingHooks: "takes its event without raising",
    broken.ParameterHooks: "every hook exists",
    broken.SilentHooks: "every hook exists",
}


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the subprocess of the light-import check; it has a test of its own."""
    monkeypatch.setattr("rlhf_testing.config.check_light_import", lambda config: None)
    monkeypatch.setattr("rlhf_testing.hooks.check_light", lambda who, module: None)


def fails(check: Any, config: Any, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule) as caught:
        check(config)
    assert "seen: " in str(caught.value)


def test_sound_ones_pass() -> None:
    kit.check_rollout(broken.EngineConfig())
    kit.check_strategy(broken.StrategyConfig())
    kit.check_benchmark(broken.BenchmarkConfig())
    kit.check_hooks(broken.SoundHooks())


@pytest.mark.parametrize("fault", ENGINE)
def test_a_broken_engine(fault: str) -> None:
    fails(kit.check_rollout, broken.EngineConfig(fault=fault), ENGINE[fault])


@pytest.mark.parametrize("fault", STRATEGY)
def test_a_broken_strategy(fault: str) -> None:
    fails(kit.check_strategy, broken.StrategyConfig(fault=fault), STRATEGY[fault])


@pytest.mark.parametrize("fault", BENCHMARK)
def test_a_broken_benchmark(fault: str) -> None:
    fails(kit.check_benchmark, broken.BenchmarkConfig(fault=fault), BENCHMARK[fault])


@pytest.mark.parametrize("plugin", HOOKS, ids=lambda p: p.__name__)
def test_a_broken_hook_plugin(plugin: Any) -> None:
    fails(kit.check_hooks, plugin(), HOOKS[plugin])


def test_the_kit_has_an_event_for_every_hook() -> None:
    assert {*sample_events(Path()), "rlhf_launch"} == set(HOOK_NAMES)


class JudgeConfig(Broken):
    name: str = "broken"

    def build(self, ctx: Any) -> Any:
        return BrokenJudge(self.fault)


class BrokenJudge:
    def __init__(self, fault: str) -> None:
        self.fault = fault

    def ask(self, requests: Any) -> Any:
        from rlhf_core.rewards import JudgeReply

        if self.fault == "raise" and any("\x00" in r.messages[0]["content"] for r in requests):
            raise ValueError("a control character")
        replies: list[Any] = [JudgeReply(f"{r.id} {len(requests) if self.fault == 'batch' else ''}") for r in requests]
        if self.fault == "type":
            replies = [r.text for r in replies]
        return replies[:1] if self.fault == "count" else replies


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("raise", "answers with a status"),
        ("batch", "does not depend on the other requests"),
        ("type", "replies are JudgeReply"),
        ("count", "one reply per request"),
    ],
)
def test_a_broken_judge(fault: str, rule: str) -> None:
    kit.check_judge(JudgeConfig())
    fails(kit.check_judge, JudgeConfig(fault=fault), rule)


COMMANDS = """
import click
{top}
@click.command()
@click.option("--size"{help})
def weigh(size):
    {doc}
"""


@pytest.mark.parametrize(
    ("path", "code", "rule"),
    [
        pytest.param("weigh", {"top": "import torch"}, "importing it is light", marks=pytest.mark.slow),
        ("weigh", {"doc": "pass"}, "it has a help text"),
        ("weigh", {"help": ""}, "every option has a help text"),
        ("train.weigh", {}, "takes no commands of plugins"),
        ("nothing", {}, "its entry point is installed"),
    ],
)
def test_a_broken_command(
    path: str, code: dict[str, str], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"top": "", "help": ', help="How large."', "doc": '"Weigh it."', **code}
    module = f"scales_{abs(hash((path, rule)))}"
    (tmp_path / f"{module}.py").write_text(COMMANDS.format(**values))
    info = tmp_path / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[rlhf.command]\n{'weigh' if path == 'nothing' else path} = {module}:weigh\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AssertionError, match=rule):
        kit.check_command(path)


def test_a_sound_command() -> None:
    kit.check_command("report")

"""The strategy on one process, and what its settings cannot be. Two ranks: tests/ddp/test_zero.py."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from rlhf_core.config import ConfigError
from rlhf_core.models import ModelConfig
from rlhf_core.rl import OnlineTrainerConfig
from rlhf_plugin_deepspeed import tested
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_plugin_dpo.config import DpoConfig
from rlhf_plugin_dpo.iterative_config import IterativeDpoConfig
from rlhf_plugin_dpo.unpaired_config import KtoConfig
from rlhf_plugin_ppo.config import PpoConfig
from rlhf_plugin_prm.config import PrmConfig
from rlhf_plugin_reward.config import RewardModelConfig
from rlhf_plugin_rubric.config import RubricTrainerConfig
from rlhf_plugin_sft.config import SftConfig

AHEAD = OnlineTrainerConfig(name="grpo", rollouts={"max_staleness": 1})  # pyright: ignore
CONTRACT = """
from rlhf_testing import check_strategy
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
for stage, offload in ((1, False), (2, True), (3, False), (3, True)):
    check_strategy(DeepSpeedConfig(stage=stage, offload=offload, offload_weights=offload and stage == 3, device="cpu"))
"""
ON_RANKS = """
from rlhf_testing import check_strategy_on_ranks
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
for stage in (2, 3):
    check_strategy_on_ranks(DeepSpeedConfig(stage=stage, device="cpu"))
"""
BRANCHES = """
import torch
from rlhf_core.config import PluginError
from rlhf_core.distributed import OptimizerPlan
from rlhf_testing import make_context
from rlhf_core.training.config import OptimizerSettings
from rlhf_core.training.optimizer import prepare_to_learn
from rlhf_core.distributed import NormPart
from rlhf_plugin_deepspeed.config import DeepSpeedConfig

class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.late = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, late):
        out = self.always(torch.ones(1, 4))
        return (self.late(out) if late else out).sum()

for stage in (1, 2, 3):
    strategy = DeepSpeedConfig(stage=stage, device="cpu").build(make_context())
    module, optimizer = prepare_to_learn(strategy, Branches(), OptimizerSettings())
    optimizer.set_rates(1.0, 1.0)
    for late in (False, True):
        with strategy.accumulate(module, last=late):
            strategy.backward(module(late))
    try:
        optimizer.step([NormPart("grad_norm", module)], 1.0)
        print(stage, "stepped")
    except PluginError as error:
        print(stage, str(error).splitlines()[0])
    strategy.close()
"""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The version of DeepSpeed that seems to be installed; none if it is taken out."""
    versions = {"deepspeed": tested.TESTED[-1]}

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(tested, "version", version)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    return versions


def context(trainer: Any = None, **model: Any) -> Any:
    run = SimpleNamespace(trainer=trainer or OnlineTrainerConfig(name="grpo"), model=ModelConfig(**model))
    return SimpleNamespace(world_size=2, config=run)


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'rlhf-plugin-deepspeed[deepspeed]'"
)
def test_every_stage_keeps_the_contract_on_one_process() -> None:
    done = subprocess.run([sys.executable, "-c", CONTRACT], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'rlhf-plugin-deepspeed[deepspeed]'"
)
def test_it_keeps_the_contract_on_two_ranks() -> None:
    done = subprocess.run([sys.executable, "-c", ON_RANKS], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'rlhf-plugin-deepspeed[deepspeed]'"
)
def test_weights_that_one_micro_batch_leaves_out_are_refused_where_they_would_be_wrong() -> None:
    """From stage 2 on they would be added to what the buffer holds of the update before."""
    done = subprocess.run([sys.executable, "-c", BRANCHES], capture_output=True, text=True, timeout=200, check=False)
    said = [line for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert [line.split(" ", 1)[0] for line in said] == ["1", "2", "3"], done.stderr[-3000:]
    assert said[0] == "1 stepped"
    assert all("got no gradient" in line for line in said[1:]), said


@pytest.mark.parametrize("stage", [0, 4, "two"])
def test_there_are_three_stages(stage: Any) -> None:
    with pytest.raises(ValidationError, match="stage"):
        DeepSpeedConfig(stage=stage)


def test_without_deepspeed_the_run_is_refused(installed: dict[str, str]) -> None:
    del installed["deepspeed"]
    with pytest.raises(ConfigError, match="not installed"):
        DeepSpeedConfig().preflight(context())
    assert DeepSpeedConfig.lacks() == "DeepSpeed is not installed"


def test_another_version_is_refused_unless_it_is_asked_for(installed: dict[str, str]) -> None:
    installed["deepspeed"] = "0.20.1"
    with pytest.raises(ConfigError, match=r"was not tested with DeepSpeed 0\.20\.1"):
        DeepSpeedConfig().preflight(context())
    DeepSpeedConfig(allow_untested=True).preflight(context())


def test_an_accelerator_for_another_device_is_refused(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "xpu")
    with pytest.raises(ConfigError, match="DS_ACCELERATOR=xpu with a run on cpu"):
        DeepSpeedConfig(device="cpu").preflight(context())
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    DeepSpeedConfig(device="cpu").preflight(context())


@pytest.mark.parametrize("settings", [{"stage": 2, "offload": True}, {"stage": 3}])
def test_weights_are_offloaded_in_stage_3_with_moments(installed: dict[str, str], settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="offload_weights with stage"):
        DeepSpeedConfig(offload_weights=True, **settings).preflight(context())


@pytest.mark.parametrize(
    ("trainer", "model", "said"),
    [
        (IterativeDpoConfig(), {}, "does not train iterative_dpo"),
        (SftConfig(), {"dtype": "bfloat16"}, "model.dtype=bfloat16"),
        (OnlineTrainerConfig(name="grpo", kl={"sync_every": 2}), {}, "kl.sync_every"),  # pyright: ignore
        (AHEAD, {"lora": {"r": 4}}, "model.lora and rollouts ahead"),
    ],
)
def test_runs_that_were_not_compared_are_refused(
    installed: dict[str, str], trainer: Any, model: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        DeepSpeedConfig().preflight(context(trainer, **model))


@pytest.mark.parametrize(
    "trainer",
    [
        SftConfig(),
        DpoConfig(),
        KtoConfig(),
        RewardModelConfig(),
        RewardModelConfig(train_trunk="lora"),
        RewardModelConfig(train_trunk="frozen"),
        PrmConfig(),
        RubricTrainerConfig(),
        PpoConfig(),
    ],
)
def test_runs_that_were_compared_are_not(installed: dict[str, str], trainer: Any) -> None:
    for stage in (1, 2, 3):
        DeepSpeedConfig(stage=stage).preflight(context(trainer))
        DeepSpeedConfig(stage=stage).preflight(context(trainer, lora={"r": 4}))


@pytest.mark.parametrize(
    ("settings", "layout"),
    [
        ({"stage": 1}, "zero1"),
        ({"stage": 2, "offload": True}, "zero2_offload"),
        ({"stage": 3}, "zero3"),
        ({"offload": True}, "zero3_offload_moments"),
        ({"offload": True, "offload_weights": True}, "zero3_offload"),
    ],
)
def test_the_memory_plan_knows_the_stage(settings: dict[str, Any], layout: str) -> None:
    assert DeepSpeedConfig(**settings).planned_as == layout

"""Each property of the conformance kit catches a component that breaks it, and passes the same one fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import broken_components as broken
import pytest
from broken_heavy import HeavyConfig

import rlhf_testing as kit
from rlhf_testing.config import check_light_import

SOUND: list[tuple[Callable[..., None], type]] = [
    (kit.check_loss, broken.TokenLossConfig),
    (kit.check_loss, broken.PairLossConfig),
    (kit.check_loss, broken.UnpairedLossConfig),
    (kit.check_advantage, broken.AdvantageConfig),
    (kit.check_reward, broken.RewardConfig),
    (kit.check_verifier, broken.WordVerifierConfig),
    (kit.check_dataset, broken.DatasetConfig),
    (kit.check_tracker, broken.TrackerConfig),
    (kit.check_monitor, broken.MonitorConfig),
    (kit.check_agent, broken.AgentConfig),
]
KL = {"healthy": [{"kl": 0.1}], "alarming": [{"kl": 5.0}]}
FAULTS = [
    (kit.check_loss, broken.TokenLossConfig, "sign", "gradient descent raises"),
    (kit.check_loss, broken.TokenLossConfig, "shape", "unreduced"),
    (kit.check_loss, broken.TokenLossConfig, "stray", "masked places get no gradient"),
    (kit.check_loss, broken.TokenLossConfig, "micro", "micro-batches add up"),
    (kit.check_loss, broken.TokenLossConfig, "detach", "has a gradient"),
    (kit.check_loss, broken.TokenLossConfig, "state", "function of its batch"),
    (kit.check_loss, broken.TokenLossConfig, "inplace", "batch.advantages_BT changed"),
    (kit.check_loss, broken.TokenLossConfig, "zero", "batch.advantages_BT changed"),
    (kit.check_loss, broken.TokenLossConfig, "mask", "batch.mask_BT changed"),
    (kit.check_loss, broken.TokenLossConfig, "data", "batch.ref_logprobs_BT changed"),
    (kit.check_loss, broken.TokenLossConfig, "leaf", "leaves what it is given alone"),
    (kit.check_loss, broken.TokenLossConfig, "second", "batch.entropy_BT changed"),
    (kit.check_loss, broken.TokenLossConfig, "nan", "finite"),
    (kit.check_loss, broken.TokenLossConfig, "metric", "metrics"),
    (kit.check_loss, broken.TokenLossConfig, "type", "LossOutput"),
    (kit.check_loss, broken.TokenLossConfig, "clip", "no gradient past"),
    (kit.check_loss, broken.PairLossConfig, "sign", "falls as chosen rises"),
    (kit.check_loss, broken.PairLossConfig, "shape", "unreduced"),
    (kit.check_loss, broken.PairLossConfig, "micro", "micro-batches add up"),
    (kit.check_loss, broken.PairLossConfig, "weights", "weights_B"),
    (kit.check_loss, broken.PairLossConfig, "inplace", "batch.margin_B changed"),
    (kit.check_loss, broken.UnpairedLossConfig, "inplace", "batch.desirable_B changed"),
    (kit.check_advantage, broken.AdvantageConfig, "array", "leaves what it is given alone"),
    (kit.check_advantage, broken.AdvantageConfig, "force", r"rollouts\[0\].text changed"),
    (kit.check_advantage, broken.AdvantageConfig, "list", r"scores\[0\].value changed"),
    (kit.check_reward, broken.RewardConfig, "meta", "leaves what it is given alone"),
    (kit.check_reward, broken.RewardConfig, "message", "leaves what it is given alone"),
    (kit.check_reward, broken.RewardConfig, "list", "samples changed"),
    (kit.check_reward, broken.RewardConfig, "force", r"samples\[0\].completion changed"),
    (kit.check_verifier, broken.WordVerifierConfig, "meta", "leaves what it is given alone"),
    (kit.check_verifier, broken.WordVerifierConfig, "force", "sample.prompt.answer changed"),
    (kit.check_dataset, broken.DatasetConfig, "kept", "same whenever"),
    (kit.check_agent, broken.AgentConfig, "groups", "groups changed"),
    (kit.check_agent, broken.AgentConfig, "given", r"seeds\[0\] changed"),
    (kit.check_advantage, broken.AdvantageConfig, "constant", "equal scores"),
    (kit.check_advantage, broken.AdvantageConfig, "order", "larger advantages"),
    (kit.check_advantage, broken.AdvantageConfig, "none", "missing score gives None"),
    (kit.check_advantage, broken.AdvantageConfig, "zero", "does not move the others"),
    (kit.check_advantage, broken.AdvantageConfig, "position", "order of the rollouts|does not move"),
    (kit.check_advantage, broken.AdvantageConfig, "count", "one advantage per rollout"),
    (kit.check_advantage, broken.AdvantageConfig, "across", "no group moves another's"),
    (kit.check_reward, broken.RewardConfig, "garbage", "raise"),
    (kit.check_reward, broken.RewardConfig, "batch", "does not depend on its batch"),
    (kit.check_reward, broken.RewardConfig, "random", "same samples get the same"),
    (kit.check_reward, broken.RewardConfig, "sorted", "in the order of the samples"),
    (kit.check_reward, broken.RewardConfig, "count", "one score per sample"),
    (kit.check_reward, broken.RewardConfig, "type", "is a Score"),
    (kit.check_reward, broken.RewardConfig, "empty", "no samples give no scores"),
    (kit.check_reward, broken.RewardConfig, "none", "scores are a list"),
    (kit.check_verifier, broken.WordVerifierConfig, "answer", "without a reference answer"),
    (kit.check_verifier, broken.WordVerifierConfig, "garbage", "raise"),
    (kit.check_verifier, broken.WordVerifierConfig, "state", "same samples get the same"),
    (kit.check_dataset, broken.DatasetConfig, "leak", "unique over both splits"),
    (kit.check_dataset, broken.DatasetConfig, "random", "same whenever"),
    (kit.check_dataset, broken.DatasetConfig, "columns", "can read prompts"),
    (kit.check_dataset, broken.DatasetConfig, "empty", "rows to train on"),
    (kit.check_dataset, broken.DatasetConfig, "type", "mapping"),
    (kit.check_dataset, broken.DatasetConfig, "iterator", "sequence"),
    (kit.check_tracker, broken.TrackerConfig, "nan", "whatever a step measured"),
    (kit.check_tracker, broken.TrackerConfig, "write", "leaves the metrics alone"),
    (kit.check_tracker, broken.TrackerConfig, "unused", "nothing was logged"),
    (kit.check_tracker, broken.TrackerConfig, "twice", "closes twice"),
    (kit.check_monitor, broken.MonitorConfig, "key", "whatever a step measured"),
    (kit.check_monitor, broken.MonitorConfig, "type", "None or a warning"),
    (kit.check_monitor, broken.MonitorConfig, "loud", "silent on a healthy run"),
    (kit.check_monitor, broken.MonitorConfig, "mute", "warns on an alarming run"),
    (kit.check_agent, broken.AgentConfig, "seeds", "share a seed"),
    (kit.check_agent, broken.AgentConfig, "random", "same episodes"),
    (kit.check_agent, broken.AgentConfig, "budget", "max_tokens"),
    (kit.check_agent, broken.AgentConfig, "version", "policy version"),
    (kit.check_agent, broken.AgentConfig, "prompt", "token_ids"),
    (kit.check_agent, broken.AgentConfig, "order", "in order"),
    (kit.check_agent, broken.AgentConfig, "info", "JSON values only"),
]


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the subprocess of the light-import check; it has a test of its own."""
    monkeypatch.setattr("rlhf_testing.config.check_light_import", lambda config: None)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(("check", "cls"), SOUND)
def test_sound_component_passes(check: Callable[..., None], cls: Any) -> None:
    check(cls(), **(KL if check is kit.check_monitor else {}))


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(("check", "cls", "fault", "rule"), FAULTS)
def test_fault_is_caught(check: Callable[..., None], cls: Any, fault: str, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule) as caught:
        check(cls(fault=fault), **(KL if check is kit.check_monitor else {}))
    assert cls.__name__ in str(caught.value)
    assert "seen: " in str(caught.value)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (broken.LooseConfig, "unknown setting is refused"),
        (broken.ThawedConfig, "frozen"),
        (broken.NoBuildConfig, "neither a component string nor a build"),
        (broken.NoContextConfig, r"config.build\(ctx\)"),
    ],
)
def test_config_fault_is_caught(cls: Any, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        kit.check_config(cls())


def test_local_class_cannot_be_pickled() -> None:
    class Local(broken.TokenLossConfig):
        pass

    with pytest.raises(AssertionError, match="pickling"):
        kit.check_config(Local())


@pytest.mark.usefixtures("light")
def test_wrong_signature_and_missing_method() -> None:
    with pytest.raises(AssertionError, match=r"observe\(step, metrics\)"):
        kit.check_monitor(broken.WrongMethodConfig())
    with pytest.raises(AssertionError, match=r"score\(samples\)"):
        kit.check_reward(broken.WrongMethodConfig())
    with pytest.raises(AssertionError, match="without verify"):
        kit.check_verifier(broken.WrongMethodConfig())


@pytest.mark.usefixtures("light")
def test_trainer_whose_companions_are_not_installed() -> None:
    from rlhf_plugin_grpo.config import GrpoConfig

    with pytest.raises(AssertionError, match="companions resolve"):
        kit.check_trainer(GrpoConfig(), settings={"loss": "no_such_loss"})


@pytest.mark.slow
def test_heavy_import_is_caught() -> None:
    check_light_import(broken.TokenLossConfig())
    with pytest.raises(AssertionError, match="imports torch"):
        check_light_import(HeavyConfig())


def test_loss_must_say_what_it_consumes(light: None) -> None:
    with pytest.raises(AssertionError, match="`consumes` is one of"):
        kit.check_loss(broken.RewardConfig())

"""`rlhf tts train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from untrained_voices import write_untrained_voice

from rlhf_core import load_run
from rlhf_core.cli import context_of, open_registry
from rlhf_core.cli.main import cli
from rlhf_core.config import ConfigError
from rlhf_core.config.load import validate
from rlhf_core.data import Media, Prompt
from rlhf_core.rewards import Sample
from rlhf_plugin_tts.config import DnsmosConfig, PhonesConfig
from rlhf_plugin_tts.dnsmos import Dnsmos
from rlhf_plugin_tts.phones import Phones
from rlhf_plugin_tts.speech_training.command import configuration, run
from rlhf_plugin_tts.speech_training.recipe import BUFFERS

OPTIONS: dict[str, Any] = {
    "model": "pocket-voice",
    "algo": "iterative_dpo",
    "reward": None,
    "iterations": 3,
    "buffer": "fresh",
    "random_labels": False,
    "early_stop": False,
    "settings": (),
    "seed": 0,
}


@pytest.mark.parametrize("buffer", list(BUFFERS))
def test_the_buffers_are_those_of_iterative_dpo(buffer: str) -> None:
    trainer = configuration({**OPTIONS, "buffer": buffer}, 2)["trainer"]
    assert trainer["buffer"] == {"fresh": "current", "rolling2": "rolling", "full": "full"}[buffer]
    assert trainer["buffer"] != "rolling" or trainer["buffer_iterations"] == 2


def test_both_algorithms_score_equally_many_clips() -> None:
    clips = set()
    for algo in ("iterative_dpo", "grpo"):
        trainer = configuration({**OPTIONS, "algo": algo}, 1)["trainer"]
        clips.add(trainer["steps"] * trainer["rollout_batch_size"])
    assert clips == {1440}


def test_one_flag_makes_the_control_and_one_the_early_stop() -> None:
    assert configuration({**OPTIONS, "random_labels": True}, 1)["reward"] == {"name": "random"}
    assert configuration({**OPTIONS, "early_stop": True}, 1)["monitors"] == [{"name": "no_gain"}]
    assert "monitors" not in configuration(OPTIONS, 1)
    changed = configuration({**OPTIONS, "settings": ("trainer.group_size=4",)}, 1)
    assert changed["trainer"]["group_size"] == 4


@pytest.mark.parametrize("control", [True, False])
def test_no_worker_process_is_asked_to_keep_a_state(control: bool) -> None:
    config = configuration({**OPTIONS, "random_labels": control, "reward": None if control else "duration"}, 2)
    registry = open_registry()
    reward: Any = validate(registry, config).reward
    with context_of(registry, reward=reward).open("reward", reward) as built:
        assert hasattr(built, "state_dict") == (config["trainer"]["reward_workers"] == 0) == control


def test_the_control_has_no_use_for_a_reward() -> None:
    with pytest.raises(ConfigError, match="leave one of them out"):
        configuration({**OPTIONS, "random_labels": True, "reward": "wer"}, 1)


def test_grpo_keeps_no_pairs() -> None:
    with pytest.raises(ConfigError, match="keeps no pairs"):
        configuration({**OPTIONS, "algo": "grpo", "buffer": "full"}, 1)


@pytest.mark.parametrize("statistics", ["calibrated", "running"])
def test_only_running_statistics_are_a_state(statistics: str) -> None:
    """The recipe's are fixed, so that worker processes, which refuse a reward with a state, can score."""
    config = configuration(OPTIONS, 2)
    parts = config["reward"]["parts"]
    assert [part["statistics"] for part in parts.values()] == ["calibrated", "calibrated"]
    parts = {name: {**part, "reward": {"name": "duration"}} for name, part in parts.items()}
    if statistics == "running":
        parts["words"] = {"reward": "duration", "normalise": "zscore"}
    registry = open_registry()
    reward: Any = validate(registry, {**config, "reward": {"name": "speech", "parts": parts}}).reward
    with context_of(registry, reward=reward).open("reward", reward) as built:
        assert hasattr(built, "state_dict") == (statistics == "running")


@pytest.mark.slow
def test_dnsmos_can_leave_a_network_out(voice: Any) -> None:
    sample = Sample(
        Prompt("a", ({"role": "user", "content": "Hi."},)), "", media=(Media("audio", path=str(voice("a.wav"))),)
    )
    for value, parts in (("p808", {"p808"}), ("ovrl", {"sig", "bak", "ovrl"})):
        (score,) = Dnsmos(DnsmosConfig(value=value, only_value=True)).score([sample])
        (whole,) = Dnsmos(DnsmosConfig(value=value)).score([sample])
        assert score.value == whole.value
        assert set(score.parts) == parts


def test_phones_counts_what_the_completion_names() -> None:
    prompt = Prompt("a", ({"role": "user", "content": "Hi."},))
    said = {"pau e1 c2 hh e1 c3 ay c5 e2": 0.0, "hh e3 ay ay ay c1": 1.0, "c1 c2": None, "k c1 ay": 0.5}
    scores = Phones(PhonesConfig()).score([Sample(prompt, text) for text in said])
    assert [score.parts.get("per") for score in scores] == list(said.values())
    assert [score.value for score in scores] == [0.0, -1.0, None, -0.5]


def test_the_command_refuses_a_run_of_other_settings(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run.yaml").write_text("seed: 1\n")
    with pytest.raises(ConfigError, match="other settings"):
        run(tmp_path / "run", {"seed": 2})


@pytest.mark.long
@pytest.mark.slow
def test_the_command_trains_measures_and_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_REPORT", "1")
    voice, run_dir = str(write_untrained_voice(tmp_path / "voice")), tmp_path / "run"
    small = ["trainer.rollout_batch_size=8", "trainer.group_size=4", "trainer.updates=2", "trainer.eval_samples=2"]
    small += ["trainer.sampling.max_tokens=30", "trainer.pair_batch_size=2", "trainer.reward_workers=0"]
    args = ["tts", "train", "--model", voice, "--run-dir", str(run_dir), "--reward", "duration", "--count", "2"]
    args += [
        "--iterations",
        "2",
        "--buffer",
        "rolling2",
        "--jobs",
        "1",
        "--json",
        *(word for s in small for word in ("--set", s)),
    ]
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, done.output
    result = json.loads((run_dir / "speech.json").read_text())
    for scorer in ("wer/wer", "dnsmos/p808", "dnsmos/ovrl"):
        assert {"before", "after", "difference"} <= set(result["table"][scorer])
    assert (run_dir / "report.html").stat().st_size > 10_000
    assert len(load_run(run_dir).metrics["reward/mean"].dropna()) == 2
    sampled, heldout = 2 * 8, 2 * 2
    assert heldout < len(list((run_dir / "audio").glob("*.flac"))) <= sampled + heldout
    weights = (run_dir / "final" / "model.safetensors").stat().st_mtime_ns
    run(run_dir, yaml.safe_load(run_dir.with_name("run.yaml").read_text()))
    assert (run_dir / "final" / "model.safetensors").stat().st_mtime_ns == weights
    assert load_run(run_dir).status == "completed"

"""Wrong names, keys and values: the nearest right one is suggested, and nothing is loaded or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config.load import resolve
from rlhf_core.plugins.registry import Registry
from rlhf_core.types.errors import ConfigError

Rlhf = Callable[..., Any]
Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--algo", "grop"), ("unknown trainer 'grop'", "did you mean 'grpo'")),
        (("--reward", "verifer"), ("unknown reward 'verifer'", "did you mean 'verifier'?")),
        (("--loss", "grpo_clap"), ("unknown loss 'grpo_clap'", "did you mean 'grpo_clip'")),
        (("--advantage", "group_nrm"), ("unknown advantage 'group_nrm'", "did you mean 'group_norm'")),
        (("--set", "reward.verifier=numerik"), ("unknown verifier 'numerik'", "did you mean 'numeric'?")),
        (
            ("--set", "trainer.stepz=3"),
            ("unknown key 'trainer.stepz'", "trainer 'grpo'", "mean 'trainer.steps'"),
        ),
        (
            ("--set", "learning_rate=1"),
            ("unknown key 'learning_rate'", "trainer.optimizer.learning_rate"),
        ),
        (("--set", "trainer.learning_rate=1"), ("fix: ", "trainer.optimizer.learning_rate")),
        (("--set", "loss.kl=1"), ("unknown key 'loss.kl'", "did you mean 'trainer.kl'?")),
        (("--set", "max_tokens=8"), ("'trainer.sampling.max_tokens'",)),
        (("--reward", "composite", "--set", "parts={}"), ("unknown key 'parts'", "did you mean 'reward.parts'?")),
        (("--set", "sede=3"), ("unknown key 'sede'", "did you mean 'seed'")),
        (("--set", "model.pth=x"), ("unknown key 'model.pth'", "did you mean 'model.path'")),
        (
            ("--set", "trainer.optimizer.learning_rte=1"),
            ("'trainer.optimizer.learning_rate'?",),
        ),
        (
            ("--set", "dataset.max_prompt_token=9"),
            ("unknown key 'dataset.max_prompt_token'", "did you mean 'dataset.max_prompt_tokens'"),
        ),
    ],
)
def test_unknown_name(refused: Refused, options: tuple[str, ...], says: tuple[str, ...]) -> None:
    refused(*options, says=says)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("trainer.steps=many", ("'trainer.steps'", "'many'")),
        ("trainer.steps=2.5", ("'trainer.steps'", "2.5")),
        ("trainer.optimizer.learning_rate=-1", ("learning_rate", "greater than 0")),
        ("trainer.optimizer.learning_rate=.inf", ("learning_rate", "finite")),
        ("trainer.optimizer.betas=[0.9, 1.0]", ("optimizer.betas.1", "less than 1")),
        ("trainer.optimizer.eps=0", ("optimizer.eps", "greater than 0")),
        ("trainer.sampling.min_tokens=99", ("min_tokens 99 is more than max_tokens",)),
        ("model.lora.dropout=0.1", ("lora.dropout 0.1 cannot be used with algorithm 'grpo'", "the same tokens")),
        ("trainer.optimizer=fast", ("unknown optimizer 'fast'", "adafactor, adamw")),
        ("trainer.reduction=median", ("'trainer.reduction'", "token_mean", "median")),
        ("model.lora=16", ("'model.lora'", "16")),
        ("seed=-1", ("'seed'", "-1")),
        ("reward=7", ("'reward'", "got 7")),
        ("trainer.sampling.stop=3", ("sampling.stop", "3")),
    ],
)
def test_wrong_type_or_value(refused: Refused, setting: str, says: tuple[str, ...]) -> None:
    refused("--set", setting, says=says)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("trainer.steps", ("--set 'trainer.steps'", "a.b=value")),
        ("a=[1", ("--set 'a=[1'", "not valid YAML")),
    ],
)
def test_malformed_set(refused: Refused, setting: str, says: tuple[str, ...]) -> None:
    refused("--set", setting, says=says)


def test_a_key_that_stands_twice_in_a_file(refused: Refused, tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("trainer:\n  steps: 3\nseed: 1\ntrainer:\n  steps: 4\n")
    refused("--config", str(file), says=(str(file), "'trainer' is given twice", "line 4"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ("gradient_accumulation_steps=4", "micro_batch_size=4"),
            (
                "trainer.gradient_accumulation_steps 4 and trainer.micro_batch_size 4 are both given",
                "leave one of them out",
            ),
        ),
        (
            ("gradient_accumulation_steps=4", "micro_batch_tokens=400"),
            ("trainer.gradient_accumulation_steps 4 and trainer.micro_batch_tokens 400 are both given",),
        ),
        (
            ("optimizer.warmup_ratio=0.1", "optimizer.warmup_steps=4"),
            ("trainer.optimizer.warmup_ratio 0.1 and trainer.optimizer.warmup_steps 4 are both given",),
        ),
        (("optimizer.warmup_ratio=0.1",), ()),
        (("gradient_accumulation_steps=3",), ("gradient_accumulation_steps 3 does not divide the 16 sequences",)),
        (("gradient_accumulation_steps=8", "train_batch_size=8", "group_size=8"), ()),
        (
            ("group_size=5",),
            (
                "group_size 5 does not divide rollout_batch_size 16",
                "trainer.group_size=4, or trainer.rollout_batch_size=15",
            ),
        ),
        (("train_batch_size=12", "group_size=4"), ("train_batch_size 12 does not divide rollout_batch_size 16",)),
        (("train_batch_size=8", "group_size=16"), ("train_batch_size 8 would cut groups of 16",)),
    ],
)
def test_sizes_that_do_not_go_into_each_other(
    refused: Refused, rlhf: Rlhf, quick: tuple[str, ...], settings: tuple[str, ...], says: tuple[str, ...]
) -> None:
    options = [word for s in settings for word in ("--set", f"trainer.{s}")]
    if says:
        refused(*options, says=says)
    else:
        assert rlhf(*quick, *options, "--dry-run").code == 0


def test_group_size_one(refused: Refused) -> None:
    refused("--set", "trainer.group_size=1", says=("group size 1 is too small", "group_norm", "trainer.group_size=8"))


def test_train_batch_that_cuts_groups(refused: Refused) -> None:
    refused("--set", "trainer.train_batch_size=4", says=("train_batch_size 4 would cut groups of 8 completions",))


def test_train_batch_that_cannot_be_shared(refused: Refused) -> None:
    refused(
        "--nproc",
        "2",
        "--set",
        "trainer.train_batch_size=8",
        says=("train_batch_size 8 cannot be divided among 2 processes", "multiple of 16"),
    )


def test_a_reference_that_cannot_be_renewed(refused: Refused) -> None:
    sync = ("--set", "trainer.kl.sync_every=2")
    refused(*sync, "--set", "model.lora={}", says=("sync_every 2 cannot be combined with model.lora", "adapter"))
    refused(
        *sync,
        "--set",
        "trainer.kl.track=false",
        "--set",
        "trainer.kl.coefficient=0",
        says=("nothing uses the reference policy",),
    )


def test_group_size_that_does_not_divide(refused: Refused) -> None:
    refused("--set", "trainer.group_size=5", says=("group_size 5 does not divide rollout_batch_size 16",))


def test_loss_of_another_kind(refused: Refused) -> None:
    refused("--loss", "bradley_terry", says=("loss 'bradley_terry' consumes pairs", "feeds token_advantages"))


def test_several_problems_are_listed_together(refused: Refused) -> None:
    refused("--set", "sede=1", "--set", "threads=0", says=("several problems", "'sede'", "'threads'"))


def test_workers_for_a_reward_that_has_its_own(refused: Refused) -> None:
    options = ("--reward", "verifier", "--dataset", "pocket/arithmetic", "--set", "trainer.reward_workers=3")
    refused(*options, says=("trainer.reward_workers=3 has no effect", "--set reward.workers=3"))


def test_config_file(refused: Refused) -> None:
    refused("--config", "none.yaml", says=("config file 'none.yaml' does not exist",))


def test_no_algorithm(refused: Refused) -> None:
    refused(args=("train",), says=("no algorithm chosen", "grpo, ", "max_rl, "))
    refused(args=("train", "--set", "algoritm=grpo"), says=("no algorithm chosen", "'algo'", "algoritm"))


def test_an_algorithm_is_understood_however_it_is_written(tmp_path: Path) -> None:
    registry = Registry()
    file = tmp_path / "run.yaml"
    file.write_text("algo: Dr-GRPO\nreward: ENSEMBLE\n")
    config = resolve(registry, files=[file])
    assert (config.trainer.name, config.reward.name) == ("dr_grpo", "ensemble")
    assert resolve(registry, files=[file], sugar={"trainer": "grpo"}).trainer.name == "grpo"
    assert resolve(registry, files=[file], settings=["algo=rloo"]).trainer.name == "rloo"
    (tmp_path / "more.yaml").write_text("model: pocket\nalgo: [grpo]\n")
    assert resolve(registry, files=[file], settings=["model=a/b", "model.lora.r=4"]).model.path == "a/b"
    with pytest.raises(ConfigError, match="is not the name of an algorithm"):
        resolve(registry, files=[tmp_path / "more.yaml"])
    with pytest.raises(ConfigError, match="algo dpo and trainer grpo are both given"):
        resolve(registry, settings=["algo=dpo", "trainer=grpo"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("--set", "trainer.rollout_batch_size=8"), "1 prompts per step cannot be divided among 2 processes"),
        (("--set", "strategy=single"), "strategy 'single' cannot run on 2 processes"),
        (("--set", "strategy=fsdp", "--set", "strategy.shard_size=3"), "strategy.shard_size 3 does not divide 2 ranks"),
        (("--loss", "grpo_clop"), "did you mean 'grpo_clip'"),
    ],
)
def test_several_processes_are_refused_before_one_is_started(
    rlhf: Rlhf, quick: tuple[str, ...], tmp_path: Path, settings: tuple[str, ...], message: str
) -> None:
    out = rlhf(*quick, "--nproc", "2", "--run-dir", tmp_path / "run", *settings)
    assert out.code == 2
    assert message in out.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["sampling", "eval_sampling"])
def test_completions_that_leave_no_room_for_a_prompt(refused: Refused, name: str) -> None:
    refused(
        "--set",
        f"trainer.{name}.max_tokens=300",
        says=("max_tokens 300 leaves no room for a prompt", "256", f"lower trainer.{name}.max_tokens"),
    )

"""What an algorithm's name brings with it, and combinations that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.config import ConfigError, Registry
from rlhf_core.config.load import validate
from rlhf_core.runs.launch.run import preflight

REGISTRY = Registry(disabled=())
TRAINERS = sorted(e.name for e in REGISTRY.entries("trainer") if e.distribution == "rlhf-plugin-grpo")


def resolve(**slots: Any) -> Any:
    return validate(REGISTRY, {"reward": "verifier", "trainer": "grpo", **slots})


def test_gdpo_names_a_penalty_that_it_would_lose() -> None:
    config = resolve(
        trainer={"name": "grpo", "kl": {"where": "reward", "coefficient": 0.1}},
        advantage={"name": "gdpo", "parts": {"format": 1.0}},
    )
    with pytest.raises(ConfigError, match=r"advantage.parts does not name 'kl'"):
        preflight(REGISTRY, config, 1, dry_run=True)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {
                "trainer": {"kl": {"where": "reward", "coefficient": 0.1}},
                "advantage": {"name": "gdpo", "parts": {"kl": 1.0}},
            },
            "would reward distance from the reference",
        ),
        (
            {"trainer": {"dynamic_sampling": {}}, "advantage": {"name": "gdpo", "parts": {"a": 1.0}}},
            "looks at the parts",
        ),
        ({"trainer": {"dynamic_sampling": {}}, "advantage": "raw"}, "advantage 'raw' learns from them too"),
        ({"trainer": {"group_size": 1}, "advantage": {"name": "reinforce_pp", "baseline": "group"}}, "group size 1"),
        ({"trainer": {"epochs_per_rollout_batch": 2}, "loss": "reinforce"}, "loss 'reinforce' has no importance ratio"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(settings: dict[str, Any], says: str) -> None:
    config = resolve(**{**settings, "trainer": {"name": "grpo", **settings["trainer"]}})
    with pytest.raises(ConfigError, match=says):
        preflight(REGISTRY, config, 1, dry_run=True)


def test_a_losss_recipe_gives_way_to_what_the_user_says() -> None:
    config = resolve(loss="dr_grpo")
    assert (config.trainer.reduction, config.advantage.name) == ("constant", "group_mean")
    config = resolve(loss="dr_grpo", trainer={"name": "grpo", "reduction": "token_mean"}, advantage="batch_norm")
    assert (config.trainer.reduction, config.advantage.name) == ("token_mean", "batch_norm")
    assert resolve(loss="dapo").trainer.overlong.cache == 0.2
    assert resolve(loss="dapo", trainer={"name": "grpo", "overlong": {"cache": 0}}).trainer.overlong.cache == 0
    assert resolve().trainer.reduction == "token_mean"


def test_a_courses_word_for_a_loss_is_that_loss() -> None:
    word, ours = resolve(loss="no_baseline"), resolve(loss="reinforce")
    assert (word.loss.component, word.advantage, word.trainer) == (ours.loss.component, ours.advantage, ours.trainer)
    assert resolve(loss="GRPO-No-Clip").loss.name == "grpo_no_clip"


@pytest.mark.parametrize("name", [n for n in TRAINERS if n not in ("grpo", "remax")])
def test_an_algorithm_is_grpo_with_its_loss(name: str) -> None:
    by_trainer, by_loss = resolve(trainer=name), resolve(loss=name)
    assert by_trainer.trainer.model_dump(exclude={"name"}) == by_loss.trainer.model_dump(exclude={"name"})
    assert (by_trainer.loss, by_trainer.advantage) == (by_loss.loss, by_loss.advantage)
    assert by_trainer.loss.name == name


@pytest.mark.parametrize(
    ("key", "says"),
    [("eps", "eps is advantage.epsilon here"), ("normalize_by_std", "normalize_by_std is advantage.scale here")],
)
def test_a_courses_word_for_a_setting_is_translated(key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve(advantage={"name": "group_norm", key: 1e-6})

"""The algorithm's recipe: the one layer between the defaults of the classes and what the user says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.config.layers import as_mapping, fill, label, plain
from rlhf_core.models.config import ModelConfig
from rlhf_core.registry import Registry

BASE_COMPANIONS: Mapping[str, Any] = {"rollout": "native", "agent": "single_turn", "strategy": "auto"}


def algorithm_recipe(registry: Registry, trainer: Any, algorithm: str, user: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the chosen algorithm brings along, as one labelled mapping. In falling precedence:

    1. the ``recipe`` of the loss, which may be the user's choice;
    2. the trainer's ``companions``, the components that go with it;
    3. the trainer's ``recipes`` for the model and the reward, then for the model.

    Settings for a component that the user replaces by another are left out.

    Args:
        registry: where the loss is looked up.
        trainer: the algorithm's Config class.
        algorithm: its name, for the labels.
        user: what the user says, labelled.
    """
    companions = {
        **label(BASE_COMPANIONS, "companion of every algorithm"),
        **label(dict(getattr(trainer, "companions", {})), f"companion of algorithm {algorithm}"),
    }
    recipe = fill(_names(user), _loss_recipe(registry, trainer, user, companions))
    recipe = fill(recipe, companions)
    for key in _recipe_keys(fill(user, recipe)):
        settings = getattr(trainer, "recipes", {}).get(key, {})
        recipe = fill(recipe, label(dict(settings), f"recipe of algorithm {algorithm} for {key}"))
    return recipe


def _recipe_keys(run: Mapping[str, Any]) -> tuple[str, str]:
    """``MODEL+REWARD`` and ``MODEL``, under which a trainer has recipes. What is malformed is refused later."""
    model, reward = run.get("model"), run.get("reward")
    path = plain(model["path"]) if isinstance(model, Mapping) and "path" in model else ModelConfig().path
    reward_name = plain(reward.get("name")) if isinstance(reward, Mapping) else None
    return f"{path}+{reward_name}", str(path)


def _names(user: Mapping[str, Any]) -> dict[str, Any]:
    """Which components the user chooses, without their settings."""
    sections = {key: as_mapping(key, value) for key, value in user.items()}
    return {key: {"name": s["name"]} for key, s in sections.items() if isinstance(s, dict) and "name" in s}


def _loss_recipe(
    registry: Registry, trainer: Any, user: Mapping[str, Any], companions: Mapping[str, Any]
) -> dict[str, Any]:
    """What the chosen loss goes with, if the trainer feeds that kind of loss."""
    loss = as_mapping("loss", fill(user, {"loss": companions.get("loss")}).get("loss"))
    name = plain(loss.get("name")) if isinstance(loss, Mapping) else None
    if name is None:
        return {}
    chosen = registry.load("loss", str(name))
    if chosen.consumes != getattr(trainer, "feeds", None):
        return {}
    return label(dict(chosen.recipe), f"recipe of loss {chosen.model_fields['name'].default}")

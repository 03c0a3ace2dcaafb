"""The algorithm's recipe: the one layer between the defaults of the classes and what the user says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rlhf_core.data.settings import source_options, spell_dataset
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.sources import embedded_of
from rlhf_core.plugins.entry_points import CORE
from rlhf_core.plugins.registry import KIND_OF_FIELD, SHORT_FIELDS, Registry
from rlhf_core.types.errors import UserError


class Setting(NamedTuple):
    """A value and where it was set."""

    value: Any
    origin: str


def label(data: Any, origin: str) -> Any:
    """The same mapping with a :class:`Setting` in the place of every value that is not a mapping."""
    if isinstance(data, Mapping):
        return {key: label(value, origin) for key, value in data.items()}
    return Setting(data, origin)


def plain(labelled: Any) -> Any:
    """The reverse of :func:`label`; what has no labels stays as it is."""
    if isinstance(labelled, Setting):
        return labelled.value
    if isinstance(labelled, dict):
        return {key: plain(value) for key, value in labelled.items()}
    return labelled


def merge_settings(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings deeply; ``over`` wins. A component given another ``name`` replaces the whole mapping."""
    merged = dict(base)
    for key, value in over.items():
        lower, upper = as_mapping(key, merged.get(key)), as_mapping(key, value)
        both = isinstance(lower, dict) and isinstance(upper, dict)
        merged[key] = merge_settings(lower, upper) if both and same_component(lower, upper) else upper
    return merged


def fill(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Give each key that ``data`` leaves open its default. Unlike in :func:`merge_settings` a null is open, too,
    defaults for a component of another name are left out, and so are those of a data set where ``data`` lists its
    sources.
    """
    filled = dict(data)
    for key, value in defaults.items():
        upper, lower = as_mapping(key, filled.get(key)), as_mapping(key, value)
        if plain(upper) is None:
            filled[key] = lower
        elif isinstance(upper, dict) and isinstance(lower, dict) and "sources" not in upper:
            filled[key] = merge_settings(lower, upper) if same_component(lower, upper) else upper
    return filled


def as_mapping(key: str, value: Any) -> Any:
    """``{"name": NAME}`` where a component or data set is given as a bare name; anything else as it is."""
    return {"name": value} if isinstance(plain(value), str) and key in SHORT_FIELDS else value


def nested(key: str, value: Any) -> dict[str, Any]:
    """A setting by its dotted key. Example: ``{"a": {"b": 1}}`` for ``a.b``"""
    first, *rest = key.split(".")
    for part in reversed(rest):
        value = {part: value}
    return {first: value}


def same_component(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> bool:
    """Whether two mappings may be settings of one component: the same name, or one side without or with ``???``."""
    return "name" not in upper or "name" not in lower or plain(lower["name"]) in ("???", plain(upper["name"]))


BASE_COMPANIONS: Mapping[str, Any] = {"rollout": "native", "agent": "single_turn", "strategy": "auto"}


def algorithm_recipe(registry: Registry, trainer: Any, algorithm: str, user: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the chosen algorithm and data bring along, as one labelled mapping. In falling precedence:

    1. the ``recipe`` of the loss, which may be the user's choice;
    2. what the data sets go with (``recipe_of``), such as stop strings;
    3. the trainer's ``companions``, the components that go with it;
    4. the trainer's ``recipes`` for the model and the reward, then for the model. A model that was fine-tuned from an
       embedded one takes the recipes of that one; there an explicit null of the user overrides the recipe.

    Settings for a component that the user replaces by another are left out.
    """
    owner = registry.find("trainer", algorithm).distribution
    section = plain(as_mapping("trainer", user.get("trainer")))
    named = resolve_names(registry, owner, {**getattr(trainer, "companions", {}), **trainer.recipe_of(section or {})})
    companions = {
        **label(resolve_names(registry, CORE, BASE_COMPANIONS), "companion of every algorithm"),
        **label(named, f"companion of algorithm {algorithm}"),
        **_of_environment(registry, trainer, user),
    }
    recipe = fill(chosen_names(user), _loss_recipe(registry, trainer, user, companions))
    run = fill(user, companions)
    recipe = fill(recipe, data_recipe(registry, trainer, plain(run.get("dataset")), run))
    recipe = fill(recipe, companions)
    run = fill(user, recipe)
    path, reward = _model_and_reward(run)
    recipes = getattr(trainer, "recipes", {})
    origin_model = None if path in recipes or not recipes else embedded_of(path, recipes)
    finetuned, name = origin_model is not None, origin_model or path
    for key in (f"{name}+{reward}", name):
        origin = f"recipe of algorithm {algorithm} for {key}" + (f", which {path} was made of" if finetuned else "")
        settings = label(resolve_names(registry, owner, recipes.get(key, {})), origin)
        recipe = fill(recipe, _left_open(settings, user) if finetuned else settings)
    if plain(as_mapping("trainer", user.get("trainer")).get("epochs")) is not None and "trainer" in recipe:
        recipe["trainer"] = {key: value for key, value in recipe["trainer"].items() if key != "steps"}
    return recipe


def _of_environment(registry: Registry, trainer: Any, user: Mapping[str, Any]) -> dict[str, Any]:
    """Agent, reward and other ``companions`` of the user's environment; an unknown one is refused later."""
    chosen = as_mapping("environment", user.get("environment"))
    name = plain(chosen.get("name")) if isinstance(chosen, Mapping) else None
    if name is None:
        return {}
    try:
        config = registry.load("environment", str(name))
    except UserError:
        return {}
    settings = {"agent": "multi_turn", **({"reward": "environment"} if getattr(config, "scores", True) else {})}
    more = dict(getattr(config, "companions", {}))
    if "trainer" in more:
        more["trainer"] = {key: value for key, value in more["trainer"].items() if key in trainer.model_fields}
    owner = registry.find("environment", str(name)).distribution
    companions = {**resolve_names(registry, CORE, settings), **resolve_names(registry, owner, more)}
    return label(companions, f"companion of environment {name}")


def _model_and_reward(run: Mapping[str, Any]) -> tuple[str, Any]:
    """The model's path and the reward's name, by which a trainer has recipes. What is malformed is refused later."""
    model, reward = run.get("model"), run.get("reward")
    path = plain(model["path"]) if isinstance(model, Mapping) and "path" in model else ModelConfig().path
    name = plain(reward.get("name")) if isinstance(reward, Mapping) else None
    return str(path), name.rpartition("/")[2] if isinstance(name, str) else name


def _left_open(settings: Mapping[str, Any], user: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of which the user says nothing, not even null: a run's plan says everything and stays as it is."""
    open_settings: dict[str, Any] = {}
    for key, value in settings.items():
        given = as_mapping(key, user.get(key))
        if isinstance(value, Mapping) and isinstance(given, Mapping):
            open_settings[key] = _left_open(value, given)
        elif key == "name" or key not in user:  # the name says for which component the settings are
            open_settings[key] = value
    return open_settings


def chosen_names(user: Mapping[str, Any]) -> dict[str, Any]:
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
    owner = registry.find("loss", str(name)).distribution
    settings = resolve_names(registry, owner, chosen.recipe)
    return label(settings, f"recipe of loss {chosen.model_fields['name'].default}")


def data_recipe(registry: Registry, trainer: Any, dataset: Any, run: Mapping[str, Any]) -> dict[str, Any]:
    """What the data sets of a section go with, labelled."""
    sources = source_options(dataset)
    recipes = [_recipe_of(registry, options) for options in sources]
    recipe = dict(recipes[0]) if recipes and all(r == recipes[0] for r in recipes) else {}
    sampling = dict(recipe.get("trainer", {}).get("sampling", {}))
    stops = dict.fromkeys(s for r in recipes for s in r.get("trainer", {}).get("sampling", {}).get("stop", ()))
    settings = {**sampling, "stop": list(stops)} if stops else sampling
    section = run.get("trainer")
    evaluated = section.get("eval_sampling") if isinstance(section, Mapping) else None
    places = ("sampling", "eval_sampling") if isinstance(evaluated, Mapping) else ("sampling",)
    of_trainer = {**recipe.get("trainer", {}), **(dict.fromkeys(places, settings) if settings else {})}
    recipe["trainer"] = {key: value for key, value in of_trainer.items() if key in trainer.model_fields}
    return label(recipe, f"data set {', '.join(str(o.get('name')) for o in sources)}")


def _recipe_of(registry: Registry, options: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        chosen = registry.load("dataset", str(options.get("name")))
    except UserError:
        return {}
    owner = registry.find("dataset", str(options.get("name"))).distribution
    return resolve_names(registry, owner, chosen.recipe_of(options)) if hasattr(chosen, "recipe_of") else {}


def resolve_names(registry: Registry, owner: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a component of ``owner`` brings along, names as :meth:`Registry.near` has them."""
    return {key: _near(registry, owner, key, value) for key, value in settings.items()}


def _near(registry: Registry, owner: str, key: str, value: Any) -> Any:
    kind = "dataset" if key == "dataset" else KIND_OF_FIELD.get(key, "")
    if isinstance(value, str) and kind == "dataset":
        spelled = spell_dataset({"name": value})
        near = registry.near(kind, spelled["name"], owner)
        return value if near == spelled["name"] else {**spelled, "name": near}
    if isinstance(value, str):
        return registry.near(kind, value, owner) if kind else value
    if isinstance(value, Mapping):
        settings = resolve_names(registry, owner, value)
        name = settings.get("name")
        return {**settings, "name": registry.near(kind, name, owner)} if kind and isinstance(name, str) else settings
    if isinstance(value, list | tuple):
        items = [_near(registry, owner, key, item) for item in value]
        return value if items == list(value) else items
    return value

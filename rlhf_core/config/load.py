"""The validated configuration of a run: class defaults < the algorithm's recipe < what the user says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from rlhf_core.config.hints import KeyHints
from rlhf_core.config.recipe import algorithm_recipe, as_mapping, chosen_names, fill, label, nested, plain
from rlhf_core.config.recipe import merge_settings as merge_settings
from rlhf_core.config.run import RunConfig
from rlhf_core.plugins.entry_points import brought_by
from rlhf_core.plugins.registry import SHORT_FIELDS, Registry
from rlhf_core.plugins.validation import explain_invalid
from rlhf_core.types.errors import ConfigError, did_you_mean

OPTION_OF_KEY = {"trainer": "--algo"}
"""Short options that are not called as the key they stand for."""


class Resolved(NamedTuple):
    """A configuration, and the labelled mapping that it was validated from."""

    config: RunConfig
    settings: Mapping[str, Any]


def resolve(registry: Registry, **layers: Any) -> RunConfig:
    """The configuration of :func:`resolve_labelled` alone."""
    return resolve_labelled(registry, **layers).config


def resolve_labelled(
    registry: Registry,
    *,
    files: Iterable[str | Path] = (),
    settings: Iterable[str] = (),
    sugar: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> Resolved:
    """The validated configuration, with where each value came from; of files later ones win, then ``sugar`` (what
    ``--algo``, ``--reward`` ... stand for), then ``settings``. ``base``, a run's whole configuration, is unused if an
    algorithm is chosen.
    """
    user: dict[str, Any] = {}
    for path in files:
        user = merge_settings(user, label(_spelled_out(read_yaml(path)), f"config {path}"))
    for key, value in (sugar or {}).items():
        user = merge_settings(user, {key: label(value, OPTION_OF_KEY.get(key, f"--{key}"))})
    settings = [re.sub(r"\Amodel=(?=[^\s{])", "model.path=", item) for item in settings]
    user = merge_settings(user, label(_spelled_out(parse_settings(settings)), "--set"))
    check_exclusive(plain(user))
    if base is not None and "name" not in (as_mapping("trainer", user.get("trainer")) or {}):
        section = as_mapping("dataset", user.get("dataset"))
        own_sources = isinstance(section, dict) and bool({"name", "sources"} & set(section))
        planned = {key: value for key, value in base.items() if key != "dataset" or not own_sources}
        user = merge_settings(label(planned, "plan of the run"), user)
    return _validate(registry, user)


def validate(registry: Registry, data: Mapping[str, Any]) -> RunConfig:
    """Fill in the algorithm's recipe and validate."""
    return _validate(registry, label(data, "the user")).config


def _spelled_out(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """A layer with ``algo`` as the name of its ``trainer`` and ``model`` as its path, as the options of these names."""
    if isinstance(layer.get("model"), str):
        layer = {**layer, "model": {"path": layer["model"]}}
    if "algo" not in layer:
        return layer
    if not isinstance(layer["algo"], str):
        raise ConfigError(f"algo {layer['algo']!r} is not the name of an algorithm", fix="write algo: NAME")
    rest = {key: value for key, value in layer.items() if key != "algo"}
    trainer = as_mapping("trainer", rest.get("trainer"))
    if isinstance(trainer, dict) and trainer.get("name", layer["algo"]) != layer["algo"]:
        raise ConfigError(f"algo {layer['algo']} and trainer {trainer['name']} are both given", fix="leave one out")
    return merge_settings(rest, {"trainer": {"name": layer["algo"]}})


def _as_installed(registry: Registry, user: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the components' names as they are installed: ``GRPO`` is ``grpo``."""
    settings = dict(user)
    for key, chosen in chosen_names(user).items():
        if key in SHORT_FIELDS and isinstance(plain(chosen["name"]), str):
            name = registry.spelled(key, plain(chosen["name"]))
            settings[key] = {**as_mapping(key, user[key]), "name": chosen["name"]._replace(value=name)}
    return settings


def unfilled(settings: Any, place: str = "") -> Iterator[str]:
    """Dotted keys that hold ``???``, which stands where the user has to choose."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from unfilled(value, f"{place}.{key}".removeprefix("."))
    elif plain(settings) == "???":
        yield place


def _validate(registry: Registry, user: Mapping[str, Any]) -> Resolved:
    if keys := ", ".join(unfilled(user)):
        raise ConfigError(f"not filled in: {keys}", why="a value is ???", fix="write it, or --set KEY=VALUE")
    user = _as_installed(registry, user)
    section = as_mapping("trainer", user.get("trainer"))
    if not isinstance(section, dict) or "name" not in section:
        names = {e.name for e in registry.entries() if e.kind in ("trainer", "algorithm")} - {"algorithm"}
        unknown = [key for key in user if key not in RunConfig.model_fields]
        nearest = did_you_mean(unknown[0], [*RunConfig.model_fields, "algo"]) if unknown else ""
        why = f"unknown keys: {', '.join(unknown)}; {nearest}".rstrip("; ") if unknown else ""
        raise ConfigError("no algorithm chosen", why=why, fix=f"--algo NAME, one of: {', '.join(sorted(names))}")
    algorithm = plain(section["name"])
    kinds = {e.kind for e in registry.entries() if algorithm in (e.name, e.qualified)}
    if "algorithm" in kinds and "trainer" not in kinds and not brought_by("trainer", algorithm):
        section = merge_settings(section, {"algorithm": {"name": section["name"]}})
        algorithm, user = "algorithm", {**user, "trainer": section | {"name": label("algorithm", "--algo")}}
    trainer = registry.load("trainer", algorithm)
    settings = fill(user, algorithm_recipe(registry, trainer, algorithm, user))
    hints = KeyHints(registry, settings)
    try:
        return Resolved(RunConfig.model_validate(plain(settings), context={"registry": registry}), settings)
    except ValidationError as error:
        raise explain_invalid(error, RunConfig, hints=hints) from error


EXCLUSIVE = (
    (
        "gradient_accumulation_steps",
        ("micro_batch_size", "micro_batch_tokens"),
        "each says how an update is cut into micro-batches",
    ),
    ("optimizer.warmup_ratio", ("optimizer.warmup_steps",), "each says how long the learning rate rises"),
)
"""A setting of the trainer, others that cannot be beside it, and why."""


def check_exclusive(user: Mapping[str, Any]) -> None:
    """Refuse settings of which each says the same; a recipe's own gives way instead."""
    trainer = user.get("trainer")
    if not isinstance(trainer, dict):
        return
    optimizer = trainer.get("optimizer")
    of_optimizer = optimizer.items() if isinstance(optimizer, dict) else ()
    given = trainer | {f"optimizer.{key}": value for key, value in of_optimizer}
    for one, others, why in EXCLUSIVE:
        both = [key for key in (one, *others) if given.get(key) is not None]
        if one in both[:-1]:
            what = " and ".join(f"trainer.{key} {given[key]}" for key in both)
            raise ConfigError(f"{what} are both given", why=why, fix="leave one of them out")


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping; ``1e-5``, in YAML 1.1 a text, is a number."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?([0-9]+\.?|[0-9]*\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


MOST_VALUES = 100_000
"""A configuration holds a few hundred values; aliases of aliases make billions of a few lines."""


def load_yaml(text: str) -> Any:
    """What a YAML text says.

    Raises:
        yaml.YAMLError: it is not YAML, or its aliases stand for more than ``MOST_VALUES`` values.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _count(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"its aliases (*name) stand for more than {MOST_VALUES} values, or one holds itself")
        data = loader.construct_document(node)
        repr(data)  # a whole number of thousands of digits is read, and no error could show it
        return data
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    except (ValueError, LookupError, AttributeError) as error:  # a date or number that is none
        raise yaml.YAMLError(f"a value cannot be read: {error}") from error
    finally:
        loader.dispose()


def _count(node: yaml.Node, counts: dict[int, float]) -> float:
    """How many values a node stands for, each alias written out; infinitely many where one is inside itself."""
    if id(node) not in counts:
        counts[id(node)] = math.inf
        children = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        counts[id(node)] = 1 + sum(_count(child, counts) for child in children if isinstance(child, yaml.Node))
    return counts[id(node)]


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read one YAML mapping; a key that stands twice is refused."""
    try:
        data = load_yaml(Path(path).read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"config file '{path}' does not exist", fix="check --config") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file '{path}' cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"config file '{path}' is not valid YAML", why=str(error)) from error
    if not isinstance(data, dict):
        raise ConfigError(f"config file '{path}' must hold a mapping, not {type(data).__name__}")
    return data


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """Turn ``["a.b=1", "c=x"]`` into ``{"a": {"b": 1}, "c": "x"}``; values are YAML."""
    out: dict[str, Any] = {}
    for item in settings:
        key, sep, text = item.partition("=")
        if not sep or not key.strip():
            raise ConfigError(f"--set '{item}' is not of the form a.b=value", fix="for example --set trainer.steps=20")
        try:
            value: Any = load_yaml(text) if text else None
        except yaml.YAMLError as error:
            raise ConfigError(f"--set '{item}': the value is not valid YAML", why=str(error)) from error
        out = merge_settings(out, nested(key.strip(), value))
    return out

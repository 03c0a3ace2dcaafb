"""Where every value of a configuration came from."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.config import ComponentConfig, Config
from rlhf_core.config.load import Resolved
from rlhf_core.config.recipe import Setting, as_mapping, label, plain
from rlhf_core.data.settings import DatasetSettings, SourceSettings, spell_dataset


class Row(NamedTuple):
    key: str
    value: Any
    """As in a plan: JSON."""
    origin: str
    """Option, file, recipe or companion; else ``FILE:Class`` whose default it is."""


class _Default(NamedTuple):
    """The default of a section, and the class that declares it: the section's own class says only what this leaves."""

    section: Config
    origin: str


def origins(resolved: Resolved) -> list[Row]:
    """Every value of the configuration with its origin, in the order of the fields."""
    config, settings = resolved
    return list(_rows(config, config.model_dump(mode="json"), settings, (), "", None))


def _rows(
    value: Any, dumped: Any, settings: Any, key: tuple[str, ...], origin: str, default: _Default | None
) -> Iterator[Row]:
    if isinstance(value, Config) and isinstance(dumped, dict):
        yield from _section(value, dumped, _fields_set(value, settings), key, default)
        return
    if isinstance(value, Sequence) and any(isinstance(item, Config) for item in value):
        items = settings.value if isinstance(settings, Setting) else settings
        given = [label(item, settings.origin) if isinstance(settings, Setting) else item for item in items or ()]
        for at, item in enumerate(value):
            of_item = given[at] if at < len(given) else None
            yield from _rows(item, dumped[at], of_item, (*key, str(at)), origin, None)
        return
    if isinstance(value, Mapping) and value and isinstance(settings, Mapping):
        for name, item in value.items():
            yield from _rows(item, dumped[name], settings.get(name), (*key, str(name)), origin, None)
        return
    yield Row(".".join(key), dumped, settings.origin if isinstance(settings, Setting) else origin)


def _section(
    config: Config, dumped: Mapping[str, Any], settings: Any, key: tuple[str, ...], default: _Default | None
) -> Iterator[Row]:
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        set_by_default = default is not None and name in default.section.model_fields_set
        if default is not None and set_by_default:
            origin, declared = default.origin, getattr(default.section, name)
        else:
            origin, declared = _class_origin(type(config), name), field.default
        same_class = isinstance(declared, Config) and type(declared) is type(value)
        of_section = _Default(declared, origin) if same_class else None
        of_field = settings.get(name) if isinstance(settings, Mapping) else settings
        yield from _rows(value, dumped[name], of_field, (*key, name), origin, of_section)


def _fields_set(config: Config, settings: Any) -> Any:
    """What was set, by field of the section that it became."""
    if isinstance(config, DatasetSettings):
        return _dataset(settings)
    if isinstance(settings, Setting):
        if isinstance(settings.value, Mapping):
            return label(settings.value, settings.origin)
        if isinstance(config, ComponentConfig) and isinstance(settings.value, str):
            return {"name": settings}
    return settings


def _dataset(settings: Any) -> Any:
    """A flat data set section in the form it is validated to: a list of sources."""
    section = as_mapping("dataset", settings)
    if not isinstance(section, Mapping):
        return section
    if "sources" in section:
        given = section["sources"]
        listed = [label(item, given.origin) for item in given.value] if isinstance(given, Setting) else given
        return {**section, "sources": [_source(item) for item in listed]}
    of_section = {key: value for key, value in section.items() if key in DatasetSettings.model_fields}
    return {**of_section, "sources": [_source({k: v for k, v in section.items() if k not in of_section})]}


def _source(settings: Any) -> Any:
    section = as_mapping("dataset", settings)
    if not isinstance(section, Mapping) or "source" in section:
        return section
    of_mixture = {key: value for key, value in section.items() if key in SourceSettings.model_fields}
    options = {key: value for key, value in section.items() if key not in of_mixture}
    name = options.get("name")
    origin = name.origin if isinstance(name, Setting) else ""
    spelled = spell_dataset({key: plain(value) for key, value in options.items()})
    unchanged = {key: options[key] for key, value in spelled.items() if key in options and plain(options[key]) == value}
    return {**of_mixture, "source": {**label(spelled, origin), **unchanged}}


def _class_origin(cls: type[Config], field: str) -> str:
    """``package/module.py:Class`` of the class that declares the field's default."""
    declaring = next(base for base in cls.__mro__ if field in vars(base).get("__annotations__", {}))
    file = Path(sys.modules[declaring.__module__].__file__ or declaring.__module__)
    package = declaring.__module__.partition(".")[0]
    parts = file.parts
    start = len(parts) - 1 - parts[::-1].index(package) if package in parts else -1
    return f"{'/'.join(parts[start:])}:{declaring.__qualname__}"

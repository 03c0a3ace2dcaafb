"""A config field that holds a component: a name or a mapping in YAML, the plugin's own Config once parsed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationError, ValidationInfo

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.plugins.registry import Registry
from rlhf_core.plugins.validation import InvalidComponent, explain_invalid
from rlhf_core.types.errors import ConfigError, PluginError


def component(kind: str, beside: Callable[[], Collection[str]] = tuple) -> Any:
    """Annotation for a component field. Example: ``loss: component("loss")``

    ``beside``: keys that may stand among the component's own in one flat section; it may have none of that name.
    """

    def chosen(value: Any, info: ValidationInfo) -> Any:
        return resolve(kind, value, info, beside)

    return Annotated[SerializeAsAny[ComponentConfig], BeforeValidator(chosen)]


def resolve(kind: str, value: Any, info: ValidationInfo, beside: Callable[[], Collection[str]] = tuple) -> Any:
    """The Config that a field's value stands for: a name, or a mapping with one.

    Raises:
        ValueError: it has no name.
        RlhfError: there is no such component, or its settings are wrong.
    """
    if value is None or isinstance(value, ComponentConfig):
        return value
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict) or "name" not in value:
        raise ValueError(f"expected a {kind} name, or a mapping with 'name', got {value!r}")
    registry, name = (info.context or {}).get("registry") or Registry(), str(value["name"])
    cls = registry.load(kind, name)
    if clash := sorted(set(cls.model_fields) & set(beside())):
        raise PluginError(
            f"{kind} '{name}' has settings called {', '.join(clash)}",
            where=registry.find(kind, name).distribution,
            why=f"the {kind} section has settings of that name",
            fix="rename the plugin's own",
        )
    try:
        return cls.model_validate(value, context=info.context)
    except ValidationError as error:
        plain = explain_invalid(error, cls, where=f"{kind} '{name}'", also=tuple(beside()))
        if not isinstance(plain, ConfigError):
            raise plain from error
        raise InvalidComponent(error, cls, f"{kind} '{name}'", tuple(beside())) from error

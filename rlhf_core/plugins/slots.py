"""A config field that holds a component: a name or a mapping in YAML, the plugin's own Config once parsed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationError, ValidationInfo

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.plugins.validation import InvalidComponent, explain_invalid
from rlhf_core.types.errors import ConfigError, PluginError


class _Resolve:
    """Looks the name up in the registry that the validation context carries."""

    def __init__(self, kind: str, beside: Callable[[], Collection[str]]) -> None:
        self.kind, self.beside = kind, beside

    def __call__(self, value: Any, info: ValidationInfo) -> Any:
        if value is None or isinstance(value, ComponentConfig):
            return value
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, dict) or "name" not in value:
            raise ValueError(f"expected a {self.kind} name, or a mapping with 'name', got {value!r}")
        registry = (info.context or {})["registry"]
        cls = registry.load(self.kind, str(value["name"]))
        if clash := sorted(set(cls.model_fields) & set(self.beside())):
            raise PluginError(
                f"{self.kind} '{value['name']}' has settings called {', '.join(clash)}",
                where=registry.find(self.kind, str(value["name"])).distribution,
                why=f"the {self.kind} section has settings of that name",
                fix="rename the plugin's own",
            )
        try:
            return cls.model_validate(value, context=info.context)
        except ValidationError as error:
            where = f"{self.kind} '{value['name']}'"
            plain = explain_invalid(error, cls, where=where, also=tuple(self.beside()))
            if not isinstance(plain, ConfigError):
                raise plain from error
            raise InvalidComponent(error, cls, where, tuple(self.beside())) from error


def component(kind: str, beside: Callable[[], Collection[str]] = tuple) -> Any:
    """Annotation for a component field. Example: ``loss: component("loss")``

    Args:
        kind: for example ``loss``.
        beside: keys that may stand among the component's own in one flat section; it may have none of that name.
    """
    return Annotated[SerializeAsAny[ComponentConfig], BeforeValidator(_Resolve(kind, beside))]

"""Which of our keys exist for the components that a run has, and which values they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rlhf_core.config import Registry, RunConfig, UserError


class Targets:
    """Looks keys up in the Configs of a run's components."""

    def __init__(self, registry: Registry, chosen: Mapping[str, str]) -> None:
        self.registry = registry
        trainer = registry.load("trainer", chosen["trainer"]) if "trainer" in chosen else None
        companions: Mapping[str, Any] = getattr(trainer, "companions", {})
        brought = {"rollout": "native", "agent": "single_turn", **_names(companions)}
        self.chosen = {**brought, **self._of_loss({**brought, **chosen}.get("loss")), **_names(chosen)}

    def _of_loss(self, name: str | None) -> dict[str, str]:
        if name is None:
            return {}
        try:
            recipe: Mapping[str, Any] = getattr(self.registry.load("loss", name), "recipe", {})
        except UserError:
            return {}
        return _names({slot: recipe[slot] for slot in ("advantage",) if slot in recipe})

    def field(self, target: str) -> FieldInfo | None:
        section, *rest = target.split(".")
        if not rest:
            return RunConfig.model_fields.get(section)
        if rest == ["name"]:  # which component a section is of
            return FieldInfo(annotation=str) if section in RunConfig.model_fields else None
        return next((type_ for model in self._models(section) if (type_ := walk(model, rest)) is not None), None)

    def exists(self, target: str) -> bool:
        return self.field(target) is not None

    def problem(self, target: str, value: Any) -> str:
        """Why a key does not take a value; "" if it does, or where only the whole configuration can say."""
        field = self.field(target)
        if field is None or field.annotation is None or target.count(".") == 0:
            return ""
        annotated: Any = Annotated[field.annotation, field]  # pyright: ignore[reportInvalidTypeForm]
        try:
            TypeAdapter(annotated).validate_python(value)
        except ValidationError as error:
            return error.errors()[0]["msg"]
        except Exception:  # a field for a component is resolved with the whole configuration
            return ""
        return ""

    def _models(self, section: str) -> Iterator[type[BaseModel]]:
        field = RunConfig.model_fields.get(section)
        if field is None:
            return
        yield from nested(field.annotation)
        for inner in nested(field.annotation):
            if "sources" in inner.model_fields:
                yield from nested(inner.model_fields["sources"].annotation)
        if section in self.chosen:
            try:
                yield self.registry.load(section, self.chosen[section])
            except UserError:
                return


def walk(model: type[BaseModel], path: list[str]) -> FieldInfo | None:
    """The field at the end of a path of names; the mapping itself where the path leads into one of free keys."""
    field = model.model_fields.get(path[0])
    if field is None or len(path) == 1:
        return field
    if "dict" in str(field.annotation):
        return FieldInfo(annotation=str)
    return next((found for inner in nested(field.annotation) if (found := walk(inner, path[1:])) is not None), None)


def nested(annotation: Any) -> list[type[BaseModel]]:
    """The Configs inside an annotation, except the base class that stands for any component."""
    if isinstance(annotation, type):
        is_config = issubclass(annotation, BaseModel) and annotation.__name__ != "ComponentConfig"
        return [annotation] if is_config else []
    return [model for part in get_args(annotation) for model in nested(part)]


def _names(companions: Mapping[str, Any]) -> dict[str, str]:
    """Slot -> name; ``pocket/assistant`` is of the component ``pocket``."""
    names = {slot: value.get("name") if isinstance(value, Mapping) else value for slot, value in companions.items()}
    return {slot: dataset_component(str(n)) if slot == "dataset" else str(n) for slot, n in names.items() if n}


def dataset_component(name: str) -> str:
    """The component that reads what ``--dataset NAME`` names."""
    if name.startswith("pocket/"):
        return "pocket"
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith((".jsonl", ".json", ".jsonl.gz", ".json.gz")):
        return "jsonl"
    return "hub" if "/" in name else name

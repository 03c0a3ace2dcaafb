"""From the string in ``ComponentConfig.component`` to the component."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlhf_core.plugins.entry_points import distribution_of
from rlhf_core.types.errors import PluginError, RlhfError

if TYPE_CHECKING:
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.context import BuildContext


def construct(config: ComponentConfig, ctx: BuildContext) -> Any:
    """Import what ``config.component`` names and call it: ``target(config)``, or ``target(config, ctx)`` where it wants
    the context, or ``target()`` where it takes nothing and there are no settings.

    Raises:
        PluginError: see :func:`import_component`.
    """
    target = import_component(type(config))
    return target(*arguments(target, config, ctx))


def import_component(cls: type[ComponentConfig]) -> Callable[..., Any]:
    """The class or function that ``cls.component`` names.

    Raises:
        PluginError: it is not of the form ``module:name``, does not import, does not exist or cannot be called; names
            distribution, version, value and cause.
    """
    value = cls.component
    module, _, attributes = value.partition(":")
    if not module or not attributes:
        raise _broken(cls, "it is not of the form module:name", "write it as package.module:Class")
    try:
        target: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            target = getattr(target, attribute)
    except RlhfError:
        raise
    except Exception as error:
        raise _broken(cls, f"{type(error).__name__}: {error}", "install what is missing, or correct the string") from (
            error
        )
    if not callable(target):
        raise _broken(cls, f"it is a {type(target).__name__}", "name a class, or a function that returns the component")
    return target


def arguments(target: Callable[..., Any], config: ComponentConfig, ctx: Any) -> tuple[Any, ...]:
    """What a component is made of; nothing only where there are no settings that would then have no effect."""
    if takes_nothing(target) and set(type(config).model_fields) <= {"name"}:
        return ()
    return (config, ctx) if takes_context(target) else (config,)


def takes_nothing(target: Callable[..., Any]) -> bool:
    """Whether it has no parameters at all, as a class without settings.

    Example:
        >>> takes_nothing(lambda: None), takes_nothing(lambda config=None: None)
        (True, False)
    """
    try:
        return not inspect.signature(target).parameters
    except ValueError:  # some classes written in C have no signature
        return False


def takes_context(target: Callable[..., Any]) -> bool:
    """Whether the context is passed: the second parameter is required, or is called ``ctx``.

    Other optional parameters keep their defaults, so that a class may have some for its tests.

    Example:
        >>> takes_context(lambda config, ctx: None), takes_context(lambda config, clock=None: None)
        (True, False)
    """
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except ValueError:  # some classes written in C have no signature
        return False
    if len(parameters) < 2:
        return False
    second = parameters[1]
    if second.kind not in (second.POSITIONAL_ONLY, second.POSITIONAL_OR_KEYWORD):
        return False
    return second.default is second.empty or second.name == "ctx"


def _broken(cls: type[ComponentConfig], why: str, fix: str) -> PluginError:
    origin = distribution_of(cls.__module__, cls.__qualname__)
    return PluginError(
        f"the component of {cls.__qualname__} cannot be loaded: {cls.component!r}",
        where=f"{origin or cls.__module__}, {cls.__module__}:{cls.__qualname__}.component",
        why=why,
        fix=fix,
    )

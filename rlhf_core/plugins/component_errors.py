"""Calls of components: what one raises is named after it, with its distribution and version."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlhf_core.types.errors import ComponentError, RlhfError, StopRun

if TYPE_CHECKING:
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.registry import Registry

LABEL = "_rlhf_label"
"""Attribute of a component that was built: how it is named to people."""


def set_label(component: object, label: str) -> None:
    """Keep on a component how it is named to people, so that whoever calls it can name it."""
    with contextlib.suppress(AttributeError, TypeError):  # one without attributes is named after its class
        object.__setattr__(component, LABEL, label)


def label_of(component: object, kind: str = "") -> str:
    """Kind, name, distribution and version of a component that was built in this process; its class's name otherwise.

    Example:
        "reward 'judge' (acme-judge 1.2)"
    """
    return getattr(component, "__dict__", {}).get(LABEL) or f"{kind} {type(component).__name__}".strip()


def label_for(kind: str, chosen: ComponentConfig, registry: Registry | None, role: str = "") -> str:
    """How the component that a Config builds is named to people.

    Args:
        kind: the component's kind.
        chosen: its configuration.
        registry: knows its distribution; None outside of a run.
        role: the label of the source that has it for itself.
    """
    label = f"{kind} '{chosen.name}'" + (f" of source '{role}'" if role else "")
    entry = None if registry is None else registry.entry_of(kind, chosen)
    return label if entry is None else f"{label} ({entry.distribution} {entry.version})"


@contextlib.contextmanager
def component_errors(label: str, method: str) -> Iterator[None]:
    """Name the component that raises inside.

    Example:
        with component_errors("advantage 'acme' (acme-adv 1.2)", "estimate()"):
            estimate = estimator.estimate(rollouts, scores, group_ids)

    Args:
        label: of the component.
        method: of the component, with brackets.

    Raises:
        ComponentError: it raised; the exception itself is the cause. What already is clear (``RlhfError``) and
            ``StopRun`` pass as they are.
    """
    try:
        yield
    except (RlhfError, StopRun):
        raise
    except Exception as error:
        raise component_error(label, method, error) from error


def component_error(label: str, method: str, error: Exception) -> ComponentError:
    """The error for a component that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    line = f"{frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}" if frames else ""
    return ComponentError(
        f"{method} of {label} raised {type(error).__name__}: {error}",
        where=line,
        fix="fix the plugin, or choose another; `rlhf --debug ...` and failure.json of the run show the traceback",
    )

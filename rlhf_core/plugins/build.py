"""Building a component as a part of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.context import BuildContext


def build_component(kind: str, config: ComponentConfig, ctx: BuildContext) -> Any:
    """Build a component of a run: named in errors, its state in every checkpoint, closed when the run ends.

    Args:
        kind: for example ``reward``.
        config: the component's.
        ctx: the run's, with what the component needs besides (``ctx.with_(policy=...)``).

    Raises:
        PluginError: a method of its kind is missing.
    """
    return ctx.session.components.build(kind, config, ctx)

"""Hooks: ``hookimpl``, and events that listeners name; docs/reference/contracts.md lists all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.plugins.hooks import RunEnd as RunEnd
    from rlhf_core.plugins.hooks import RunStart as RunStart
    from rlhf_core.plugins.hooks import StepMetrics as StepMetrics
    from rlhf_core.plugins.hooks import StepRollouts as StepRollouts
    from rlhf_core.plugins.hooks import hookimpl as hookimpl
    from rlhf_core.types.errors import StopRun as StopRun

__getattr__, __dir__ = surface(__name__)

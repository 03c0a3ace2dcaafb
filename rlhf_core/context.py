"""What a component is given when it is built."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.config.run import RunConfig
    from rlhf_core.registry import Registry


@dataclass(frozen=True)
class BuildContext:
    """Handed to ``Config.build``. Everything a component may need, nothing it must import.

    ``policy`` (a ``LoadedModel``) and ``strategy`` are set once the trainer has made them; rewards that
    need no policy never look at them.
    """

    config: RunConfig
    registry: Registry
    seed: int
    run_dir: Path | None = None
    session: Any = None
    """The run's :class:`rlhf_core.runs.session.RunSession`."""
    rank: int = 0
    world_size: int = 1
    policy: Any = None
    strategy: Any = None
    datasets: Any = None
    """The run's :class:`rlhf_core.data.datasets.Datasets` (prompts, pairs, demonstrations by split)."""
    dry_run: bool = False
    """Nothing is to be run: a ``preflight`` downloads and trains nothing, and leaves out what would need it."""
    report: dict[str, Any] = field(default_factory=dict)
    """Facts a component wants in ``summary.json`` (for example an ensemble's held-out accuracy)."""

    def with_(self, **changes: Any) -> BuildContext:
        """Return a copy with the given fields replaced. ``report`` stays shared."""
        return replace(self, **changes)

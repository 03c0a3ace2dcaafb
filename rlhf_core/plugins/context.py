"""What a component is given when it is built."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.config.run import RunConfig
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.registry import Registry


@dataclass(frozen=True)
class BuildContext:
    """Handed to ``Config.build``. Everything a component may need, nothing it must import. ``policy`` (a
    ``LoadedModel``) and ``strategy`` are set once the trainer has made them.
    """

    config: RunConfig
    """The run's whole configuration; outside a run only what the caller knows."""
    registry: Registry
    """The installed components; frozen in a run."""
    seed: int
    """The run's; derive every random number from it."""
    run_dir: Path | None = None
    """The run's folder; None outside a run."""
    session: Any = None
    """The run's :class:`rlhf_core.runs.session.RunSession`; None outside a run."""
    rank: int = 0
    """Which process of the run this is; only rank 0 writes files."""
    world_size: int = 1
    """How many processes there are."""
    policy: Any = None
    """The policy: ``model`` (a torch module), ``tokenizer``, ``context`` (tokens that fit). None in ``preflight``."""
    strategy: Any = None
    """Ranks, gradients and devices (``rlhf_core.distributed.Strategy``). None in ``preflight``."""
    datasets: Any = None
    """The run's :class:`rlhf_core.data.datasets.Datasets` (prompts, pairs, demonstrations); None before it is read."""
    dry_run: bool = False
    """Nothing is to be run: a ``preflight`` downloads and trains nothing, and leaves out what would need it."""
    report: dict[str, Any] = field(default_factory=dict)
    """Facts a component wants in ``summary.json`` (for example an ensemble's held-out accuracy)."""

    @property
    def device(self) -> Any:
        """Where models run, a ``torch.device``: the strategy's; outside a run a card, if there is one."""
        import torch

        return self.strategy.device if self.strategy else torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def build(self, kind: str, config: ComponentConfig) -> Any:
        """Build a component of the run: named in errors, its state in every checkpoint, closed when the run ends.

        Raises:
            PluginError: a method of its kind is missing.
        """
        return self.session.components.build(kind, config, self)

    @contextmanager
    def open(self, kind: str, config: ComponentConfig) -> Generator[Any, None, None]:
        """Build a component outside a run, checked against its protocol; it is closed at the end.

        Raises:
            PluginError: what was built is no such component.
        """
        from rlhf_core.plugins.component_calls import component_errors, label_for, set_label
        from rlhf_core.plugins.registry import check_component

        label = label_for(kind, config, self.registry)
        with component_errors(label, "build()"):
            built = config.build(self)
        try:
            check_component(kind, built, label)
            set_label(built, label)
            yield built
        finally:
            if callable(close := getattr(built, "close", None)):
                close()

    def with_(self, **changes: Any) -> BuildContext:
        """Return a copy with the given fields replaced. ``report`` stays shared."""
        return replace(self, **changes)

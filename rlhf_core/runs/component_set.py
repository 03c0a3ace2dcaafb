"""The components of a run: how each is named, what of it a checkpoint holds, and what has to be closed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core.data.atomic import write_json
from rlhf_core.data.held_out import FILE, trained_on
from rlhf_core.plugins.component_calls import component_errors, label_for, label_of, set_label, time_limit
from rlhf_core.plugins.registry import check_component
from rlhf_core.types.errors import PluginError, RunDirError, error_text

if TYPE_CHECKING:
    from rlhf_core.data.datasets import Datasets
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.context import BuildContext


log = logging.getLogger("rlhf")


class RowRecorder:
    """Keeps ``rows.json`` of a run, and warns once if its base model was trained on what it holds out."""

    def __init__(self, run: Path, model: str) -> None:
        self.run, self.model, self.warned, self.shared = run, model, False, 0
        self.rows: dict[str, list[str]] = {}

    def __call__(self, datasets: Datasets) -> None:
        """Write what was read so far, once the run's folder is there."""
        rows = self.rows = {split: sorted(datasets.content_keys(split)) for split in ("train", "heldout")}
        self.write()
        self._compare(set(rows["train"]), set(rows["heldout"]))
        _, warning = trained_on(self.model, rows["heldout"])
        if warning and not self.warned:
            self.warned = True
            log.warning("%s; its figures on held-out rows are too good", warning)

    def _compare(self, train: set[str], heldout: set[str]) -> None:
        """Warn of rows on both sides: of a source's own splits, of several sources, or of ids for the same prompt."""
        shared = len(train & heldout)
        if shared > self.shared:
            log.warning(
                "%d of the %d held-out prompts are trained on too, so that figures on held-out rows are too good; "
                "dataset.heldout=FILE takes its rows from training",
                *(shared, len(heldout)),
            )
        self.shared = max(shared, self.shared)

    def write(self) -> None:
        """Write the rows if the run has begun; a trainer reads its data before its folder is made."""
        if self.rows and (self.run / "plan.json").exists():
            write_json(self.run / FILE, self.rows)
            self.rows = {}


class BuiltComponent(NamedTuple):
    """One built component.

    Example:
        BuiltComponent("reward", "reward/judge", "reward 'judge' (acme-judge 1.2)", component)
    """

    kind: str
    key: str
    """Names it in checkpoints and counts; unique in a run."""
    label: str
    """Names it to people."""
    component: Any


class ComponentSet:
    """Every component of one run, in the order they were built."""

    def __init__(self) -> None:
        self._entries: list[BuiltComponent] = []
        self.rows: RowRecorder | None = None

    def build(self, kind: str, chosen: ComponentConfig, ctx: BuildContext, role: str = "") -> Any:
        """Build, check and remember a component; ``role`` tells several of a kind apart, such as a source's label."""
        label = label_for(kind, chosen, ctx.registry, role)
        with component_errors(label, "build()"):
            built = chosen.build(ctx)
        check_component(kind, built, label)
        return self.add(kind, built, chosen, ctx, role)

    def build_slot(self, kind: str, ctx: BuildContext) -> Any:
        """Build the component of a kind that the run's configuration names."""
        return self.build(kind, getattr(ctx.config, kind), ctx)

    def add(self, kind: str, built: Any, chosen: ComponentConfig, ctx: BuildContext, role: str = "") -> Any:
        """Remember a component that was built elsewhere, and return it."""
        key = f"{kind}/{role or chosen.name}"
        taken = sum(p.key.partition("#")[0] == key for p in self._entries)
        label = label_for(kind, chosen, ctx.registry, role)
        set_label(built, label)
        self._entries.append(BuiltComponent(kind, f"{key}#{taken + 1}" if taken else key, label, built))
        return built

    def attach(self, label: str, component: Any) -> None:
        """Close something else together with the components."""
        self._entries.append(BuiltComponent("", label, label, component))

    def of(self, component: Any) -> BuiltComponent:
        """A component's entry; named after its class if it was not built here."""
        name = label_of(component)
        return next(
            (entry for entry in self._entries if entry.component is component),
            BuiltComponent("", name, name, component),
        )

    def state_dict(self) -> dict[str, Any]:
        """Key -> state of every component that is ``Stateful``."""
        from rlhf_core.types.tree import foreign

        states = {p.key: p.component.state_dict() for p in self._stateful()}
        for entry in self._entries:
            name = foreign(states.get(entry.key))
            if name:
                raise PluginError(
                    f"state_dict() of {entry.label} holds a {name}, which a checkpoint cannot store",
                    fix="return plain values, lists, dicts, numpy arrays and tensors only",
                )
        return states

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        for entry in self._stateful():
            if entry.key not in state:
                raise RunDirError(
                    f"the checkpoint has no state of {entry.label}",
                    why=f"it has {sorted(state)}",
                    fix="resume with the packages that the run was started with",
                )
            entry.component.load_state_dict(state[entry.key])

    def _stateful(self) -> Iterator[BuiltComponent]:
        """A reward that is itself a torch module is taken for a frozen network, which its own files hold."""
        import torch

        for entry in self._entries:
            methods = (getattr(entry.component, m, None) for m in ("state_dict", "load_state_dict"))
            frozen = entry.kind == "reward" and isinstance(entry.component, torch.nn.Module)
            if all(map(callable, methods)) and not frozen:
                yield entry

    def close(self) -> None:
        """Close what can be closed, last built first; one that fails does not keep the others open. Idempotent."""
        while self._entries:
            entry = self._entries.pop()
            close = getattr(entry.component, "close", None)
            try:
                if callable(close):
                    with time_limit("close", f"close() of {entry.label}"):
                        close()
            except (Exception, SystemExit) as error:
                log.warning("%s failed to close: %s", entry.label, error_text(error))


def register_sources(datasets: Datasets, ctx: BuildContext) -> None:
    """Add the sources of the run's dataset to its components, and keep which rows the run trains on and holds out."""
    if ctx.run_dir is not None and ctx.rank == 0:
        datasets.read = ctx.session.components.rows = RowRecorder(ctx.run_dir, ctx.config.model.path)
        if datasets.content_keys("train"):
            datasets.read(datasets)
    for source in datasets.sources:
        ctx.session.components.add("dataset", source.component, source.settings.source, ctx, source.label)

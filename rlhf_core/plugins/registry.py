"""Finds components by entry-point metadata. Importing this module or listing plugins never imports a plugin."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core.plugins.entry_points import (
    CORE,
    Entry,
    brought_by,
    disabled_distributions,
    entries_of,
    load_entry,
    normalise,
    required_distributions,
)
from rlhf_core.types.errors import PluginError, did_you_mean

if TYPE_CHECKING:
    from rlhf_core.plugins.component import ComponentConfig


class Kind(NamedTuple):
    """One kind; its entry-point group is ``rlhf.NAME``."""

    name: str
    methods: tuple[str, ...]
    """What a built component must have; checked once, at build."""
    protocol: str = ""
    """Its protocol in ``rlhf_core.plugins.protocols``; "" if it has none."""
    field: str = ""
    """The configuration field that holds one component of this kind; "" if none does."""
    list_field: str = ""
    """That which holds several."""


TABLE: tuple[Kind, ...] = (
    Kind("trainer", ("run",), "Trainer", "trainer"),
    Kind("loss", ("__call__",), "Loss", "loss"),
    Kind("optimizer", ("step",), "", "optimizer"),
    Kind("advantage", ("estimate",), "Advantage", "advantage"),
    Kind("algorithm", ("signals",), "", "algorithm", "algorithms"),
    Kind("reward", ("score",), "RewardModel", "reward", "rewards"),
    Kind("verifier", ("verify",), "Verifier", "verifier"),
    Kind("judge", ("ask",), "Judge"),
    Kind("agent", ("play",), "Agent", "agent"),
    Kind("environment", ("reset", "step", "score"), "Environment", "environment"),
    Kind("tool", ("call",), "Tool", "", "tools"),
    Kind("rollout", ("generate",), "RolloutEngine", "rollout"),
    Kind("strategy", ("prepare", "backward", "clip_grad_norm"), "Strategy", "strategy"),
    Kind("dataset", ("rows",), "DatasetSource", "source"),
    Kind("benchmark", ("evaluate",), "Benchmark", "", "benchmarks"),
    Kind("monitor", ("observe",), "Monitor", "", "monitors"),
    Kind("tracker", ("log", "close"), "Tracker", "", "trackers"),
    Kind("study", ("run", "table"), "Study"),
)

KINDS: tuple[str, ...] = tuple(kind.name for kind in TABLE)

METHODS: Mapping[str, tuple[str, ...]] = {kind.name: kind.methods for kind in TABLE}
PROTOCOLS: Mapping[str, str] = {kind.name: kind.protocol for kind in TABLE if kind.protocol}
KIND_OF_FIELD: Mapping[str, str] = {
    field: kind.name for kind in TABLE for field in (kind.field, kind.list_field) if field
}
"""Configuration field -> kind of the components that it holds."""

SHORT_FIELDS: frozenset[str] = frozenset({"dataset", *(kind.field for kind in TABLE if kind.field == kind.name)})
"""Configuration fields in which a bare name stands for ``{name: NAME}`` before layers are merged."""


class Registry:
    """Every installed component, by kind and name; of rlhf-core's only with ``only_core`` (``--no-plugins``), and none
    of ``disabled`` distributions (None takes the user's list). Frozen once a plan is resolved.
    """

    def __init__(self, *, only_core: bool = False, disabled: Iterable[str] | None = None) -> None:
        self.only_core = only_core
        self.disabled = frozenset(map(normalise, disabled_distributions() if disabled is None else disabled))
        self._frozen = False
        self._planned: dict[tuple[str, str], str] = {}

    @cached_property
    def _by_kind(self) -> dict[str, list[Entry]]:
        return {kind: [*filter(self._enabled, entries_of(f"rlhf.{kind}"))] for kind in KINDS}

    def _enabled(self, entry: Entry) -> bool:
        if entry.distribution == CORE:
            return True
        return not self.only_core and entry.distribution not in self.disabled

    def entries(self, kind: str | None = None) -> list[Entry]:
        """Return all entries of a kind (or of every kind), sorted by name."""
        kinds = KINDS if kind is None else (kind,)
        return [e for k in kinds for e in self._by_kind[k]]

    def add(self, kind: str, name: str, value: str, *, distribution: str) -> None:
        """Add a component that metadata does not declare; called in ``rlhf_register``, the same in every process.

        Args:
            kind: the component's kind.
            name: what config calls it.
            value: ``module:Class`` of its Config; imported only when selected.
            distribution: the installed distribution that it comes from.

        Raises:
            PluginError: no such kind or distribution, or the plan is already resolved.
        """
        if self._frozen:
            raise PluginError(
                f"{kind} '{name}' is registered too late",
                why="the plan is already resolved",
                fix="call registry.add() in rlhf_register",
            )
        if kind not in KINDS:
            raise PluginError(f"there is no kind '{kind}'", fix=did_you_mean(kind, KINDS) or ", ".join(KINDS))
        point = metadata.EntryPoint(name, value, f"rlhf.{kind}")
        entry = Entry(normalise(distribution), _version(distribution), point)
        rows = self._by_kind[kind]
        if self._enabled(entry) and entry not in rows:
            self._by_kind[kind] = sorted([*rows, entry], key=lambda e: (e.name, e.distribution))

    def freeze(self) -> None:
        """No registration after this; called when the plan is resolved."""
        self._frozen = True

    def spelled(self, kind: str, name: str) -> str:
        """The installed name that differs from ``name`` in case or dashes alone; ``name`` where there is none."""
        names = {e.name for e in self._by_kind[kind]}
        lower = name.lower().replace("-", "_")
        return lower if name not in names and lower in names else name

    def find(self, kind: str, name: str) -> Entry:
        """Return the entry that ``name`` (bare or ``distribution/name``) selects.

        Raises:
            PluginError: unknown (with the nearest names) or claimed by two distributions.
        """
        rows = [e for e in self._by_kind[kind] if name in (e.name, e.qualified)]
        if not rows:
            raise self._unknown(kind, name)
        planned = self._planned.get((kind, name))
        if len(rows) > 1 and planned in [e.distribution for e in rows]:
            rows = [e for e in rows if e.distribution == planned]
        if len(rows) > 1:
            spellings = " or ".join(e.qualified for e in rows)
            raise PluginError(
                f"{kind} '{name}' is claimed by {len(rows)} distributions",
                where=", ".join(f"{e.distribution} {e.version}" for e in rows),
                fix=f"write {spellings}, or run: rlhf plugins disable DISTRIBUTION",
            )
        return rows[0]

    def prefer(self, components: Iterable[Mapping[str, str]]) -> None:
        """Take a bare name that several distributions claim for the component of these rows of a plan."""
        self._planned |= {(row["kind"], row["name"]): normalise(row["distribution"]) for row in components}

    def near(self, kind: str, name: str, owner: str) -> str:
        """What a component of the distribution ``owner`` means by a name: its own distribution's component, else that
        of one it requires, else the core's, else that of a distribution in the core's extra ``all``. Qualified only if
        several distributions claim the name.
        """
        rows = {e.distribution: e for e in self._by_kind.get(kind, ()) if e.name == name}
        if len(rows) < 2:
            return name
        order = [owner, *required_distributions(owner), CORE, *required_distributions(CORE, "all")]
        return next((rows[d].qualified for d in map(normalise, order) if d in rows), name)

    def selected(self, kind: str, chosen: ComponentConfig) -> Entry:
        """The entry of a Config that was chosen, or that is another Config's default."""
        return self.entry_of(kind, chosen) or self.find(kind, chosen.name)

    def entry_of(self, kind: str, chosen: ComponentConfig) -> Entry | None:
        """The entry that a Config was loaded from; of several of its name the one that names its class."""
        rows = [e for e in self._by_kind[kind] if chosen.name in (e.name, e.qualified)]
        value = f"{type(chosen).__module__}:{type(chosen).__qualname__}"
        return rows[0] if len(rows) == 1 else next((e for e in rows if e.value == value), None)

    def _unknown(self, kind: str, name: str) -> PluginError:
        also = self._by_kind["algorithm"] if kind == "trainer" else []
        known = sorted({e.name for e in (*self._by_kind[kind], *also)})
        others = [e.kind for e in self.entries() if name in (e.name, e.qualified)]
        begin = f"choose one of kind {kind}" if others else "pip install the plugin with it"
        fix = did_you_mean(name, known) or f"{begin}; rlhf plugins list --kind {kind}"
        if distribution := brought_by(kind, name):
            fix = f"pip install {distribution}, or enable it: rlhf plugins enable {distribution}"
        if kind == "reward" and "verifier" in others:
            fix = f"--reward verifier --set reward.verifier={name}"
        return PluginError(
            f"unknown {kind} '{name}'",
            why=f"'{name}' is the name of a component of kind {', '.join(others)}"
            if others
            else f"installed: {', '.join(known) or 'none installed'}",
            fix=fix,
        )

    def config(self, kind: str, name: str, settings: Mapping[str, Any] | None = None) -> ComponentConfig:
        """A component's Config.

        Raises:
            PluginError: there is no such component.
            ConfigError: a setting does not exist or has a value that cannot be used.
        """
        cls = self.load(kind, name)
        return cls.from_settings({**(settings or {}), "name": self.find(kind, name).name}, f"{kind} '{name}'", self)

    def load(self, kind: str, name: str) -> type[ComponentConfig]:
        """Import the Config class that an entry names.

        Raises:
            PluginError: the distribution needs another core, does not import, or is not a Config.
        """
        from rlhf_core.plugins.component import ComponentConfig

        entry = self.find(kind, name)
        fix = f"reinstall it or choose another; rlhf plugins check {entry.distribution} shows the traceback"
        cls = load_entry(entry, f"{kind} '{entry.name}'", fix)
        if not (inspect.isclass(cls) and issubclass(cls, ComponentConfig)):
            raise PluginError(
                f"{kind} '{entry.name}' does not name a ComponentConfig subclass",
                where=entry.where,
                why=f"it is {cls!r}",
                fix="point the entry point at the component's Config class",
            )
        return cls


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError as error:
        raise PluginError(
            f"distribution '{distribution}' is not installed", fix="name the distribution that the component is part of"
        ) from error


def check_component(kind: str, component: object, label: str) -> None:
    """Refuse a built component that lacks a method of its protocol; ``label`` names it in the error."""
    missing = [m for m in METHODS[kind] if not callable(getattr(component, m, None))]
    if missing:
        raise PluginError(
            f"{label if label.startswith(f'{kind} ') else f'{kind} {label!r}'} built a {type(component).__name__} "
            f"without {', '.join(missing)}()",
            fix=f"see rlhf_core.plugins.protocols for what a {kind} must have",
        )

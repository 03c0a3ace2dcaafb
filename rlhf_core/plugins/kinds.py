"""The kinds of components: one table, from which everything that differs by kind is derived.

Imports nothing, so that listing is instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


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
    """The configuration field that holds several."""


TABLE: tuple[Kind, ...] = (
    Kind("trainer", ("run",), "Trainer", "trainer"),
    Kind("loss", ("__call__",), "Loss", "loss"),
    Kind("advantage", ("estimate",), "Advantage", "advantage"),
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
"""Kind -> methods a built component must have."""

PROTOCOLS: Mapping[str, str] = {kind.name: kind.protocol for kind in TABLE if kind.protocol}
"""Kind -> name of its protocol."""

KIND_OF_FIELD: Mapping[str, str] = {
    field: kind.name for kind in TABLE for field in (kind.field, kind.list_field) if field
}
"""Configuration field -> kind of the components that it holds."""

SHORT_FIELDS: frozenset[str] = frozenset({"dataset", *(kind.field for kind in TABLE if kind.field == kind.name)})
"""Configuration fields in which a bare name stands for ``{name: NAME}`` before layers are merged."""

"""What a rollout engine with weights of its own holds: its configuration has ``memory(facts)``, which returns an
:class:`EngineMemory`, and may have ``memory_changes()``: (setting, cost, configuration), the cheapest first. Its class
may have ``layouts(asked)``: how it would use cards, an :class:`EngineLayout` each, the preferred first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError

if TYPE_CHECKING:
    from rlhf_core.config import RunConfig

Parts = Mapping[str, int]
WEIGHTS, CACHE, SERVERS = "engine weights", "engine KV cache", "engine servers"
"""Parts that are certain to be held: they are reserved when the engine starts."""
COMPUTING, SYNC = "engine activations", "weight sync"
RESERVED = (WEIGHTS, CACHE, SERVERS)


@dataclass(frozen=True)
class EngineFacts:
    """What the memory of an engine depends on beside its settings; bytes unless said otherwise."""

    weights: int
    """Of the model that it samples with, without adapters, in the number type that computes."""
    head: int
    """Of the output head among them."""
    token: int
    """Keys and values of one token, of all layers."""
    vocabulary: int
    context: int
    """Tokens of prompt and completion that fit."""
    rows: int
    """Completions that one rank samples for a step."""
    trained: int
    """What is trained, as it is handed over for each version: all weights, or adapters."""
    largest: int
    """The largest weight among that."""
    lora: bool
    on_cpu: bool
    device: int
    """Of the device in all, free or not."""
    ranks: int
    unit: int = 0
    """The largest decoder layer, or embedding or head, in the number type that the policy computes in."""


@dataclass(frozen=True)
class EngineMemory:
    parts: Parts
    """On the rank's device from the engine's start to its end."""
    updating: Parts | None = None
    """What is left of that while the policy is updated and written; None: all."""
    sampling: Parts = field(default_factory=dict[str, int])
    """What comes on top while it samples."""
    syncing: Parts = field(default_factory=dict[str, int])
    """What comes on top while it is handed weights, beside the trainer's copy of what is trained."""
    host: Parts = field(default_factory=dict[str, int])
    """In main memory, beside a device of its own."""
    elsewhere: Parts = field(default_factory=dict[str, int])
    """Place -> bytes on a device that no rank uses, such as ``card 2``; counted against no rank."""
    is_estimate: bool = False
    """No run has measured it."""
    from_shards: bool = False
    """Where ranks divide the weights it is given them one by one, on rank 0 (``write_weights``): never whole."""
    copies_weights: bool = False
    """It copies each weight on every rank, gathered there if ranks divide it; no snapshot is made for it."""
    refusal: ConfigError | None = None
    """Why it cannot start with these settings, whatever else the device holds."""

    @property
    def left(self) -> Parts:
        """On the rank's device in an update."""
        return self.parts if self.updating is None else self.updating


@dataclass(frozen=True)
class CardsAsked:
    """Cards that an engine is asked about."""

    cards: int
    per_machine: int
    facts: EngineFacts
    """Of one rank; ``device`` is a card's memory."""
    heads: int
    kv_heads: int
    model: str
    """What servers are started with."""
    dtype: str
    """In which the policy computes, by torch's name."""
    lora_rank: int
    quantized: bool
    """The model is packed in 4 bits."""
    ahead: bool
    """Batches are sampled while the policy is updated."""
    own: Any
    """The run's rollout configuration, of this class or of another."""


@dataclass(frozen=True)
class EngineLayout:
    """One way in which an engine would use cards."""

    train: int
    """Cards that train."""
    settings: Sequence[str]
    """Of the run, as ``--set`` takes them; ``$NAME`` is a variable of the shell."""
    servers: int
    """0: an engine in each training process."""
    cards: int
    """Of one server."""
    weights: int
    """Bytes on each card that serves; in the training process of its engine."""
    cache: int
    """Likewise, of keys and values."""
    tokens: int
    """That the cache of one server or process holds."""
    start: Sequence[str] = ()
    """Lines of shell that start servers before the run."""
    refusal: ConfigError | None = None
    """Why it cannot be, whatever the trainer holds."""


def says_memory(run: RunConfig) -> bool:
    """Whether the run samples with an engine whose configuration says what it holds."""
    return run.samples_itself and hasattr(run.rollout, "memory")


def engine_memory(run: RunConfig, facts: EngineFacts) -> EngineMemory | None:
    """Of the run's engine; None where it samples from the policy itself. A setting that cannot be read is its
    refusal."""
    engine: Any = run.rollout
    if not says_memory(run):
        return None
    try:
        return engine.memory(facts)
    except ConfigError as error:
        return EngineMemory({}, refusal=error)


def accepted_by_engine(facts: EngineFacts) -> Callable[[RunConfig], bool]:
    """Whether the engine of a changed run could start, as its configuration says."""

    def accepted(run: RunConfig) -> bool:
        held = engine_memory(run, facts)
        return held is None or held.refusal is None

    return accepted

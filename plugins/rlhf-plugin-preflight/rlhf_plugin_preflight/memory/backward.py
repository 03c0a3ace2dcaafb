"""What is alive in each stage of an update's backward (:class:`Stage`), to which the plan adds what a strategy holds
there: its peak need not be where one process has its own, as gradients are divided and weights gathered by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rlhf_core.distributed import decoder_layers
from rlhf_plugin_preflight.memory.live import UNNAMED, LiveBytes

HEAD, FIRST, SECOND, LAST = "head", "first layer", "second layer", "last layer"
OTHER, OTHER_FIRST = "head of the other model", "its first layer"
AFTER, ROOT = "after all layers", "root"
"""Stages. The backward goes from the last decoder layer to the first one; "first" is the one where it begins. Where
policy and critic both have layers, those of one come before head and layers of the other. ``ROOT`` is when gradients
of what is in no layer (embedding, head) are complete."""


@dataclass(frozen=True)
class Held:
    """Bytes at one moment."""

    activations: int
    """Everything but weights, moments and gradients that are complete."""
    gradients: int


@dataclass(frozen=True)
class Stage:
    """The most in one stage of the backward, bytes."""

    activations: int
    """Of them alone."""
    whole: Held
    """Of them with all gradients that there are."""
    undivided: Held
    """Of them with gradients that a sharding strategy has not divided yet: of the layer at hand, and of the root."""


class Backward:
    """Follows an update's forward and backward; a strategy would shard each decoder layer of ``module`` by itself."""

    def __init__(self, module: torch.nn.Module, live: LiveBytes) -> None:
        self.live = live
        self.layers = decoder_layers(module)
        self._layer_of = {id(p): n for n, layer in enumerate(self.layers) for p in layer.parameters()}
        self._undivided: Counter[int] = Counter()
        """Layer -> bytes of its gradients; -1 is the root."""
        self._at: int | None = None
        """Layer whose backward is under way."""
        self.passed: list[int] = []
        """Layers whose backward is over, in order."""
        self.between: int | None = None
        """How many of them came before the head of another model."""
        self.root = 0
        """Bytes of the root's gradients."""
        self._stages: dict[tuple[int, bool], Stage] = {}
        """(Layers passed, in a layer) -> what is alive."""
        self._end: Stage | None = None

    @property
    def stages(self) -> dict[str, Stage]:
        """By name; one process may not have all of them."""
        count, between = len(self.passed), self.between
        stage_of: dict[str, tuple[int, bool] | None] = {
            HEAD: (0, False),
            FIRST: (0, True),
            SECOND: (1, True),
            LAST: (count - 1, True),
            OTHER: None if between is None else (between, False),
            OTHER_FIRST: None if between is None else (between, True),
            AFTER: (count, False),
        }
        named = {name: self._stages[stage] for name, stage in stage_of.items() if stage in self._stages}
        return named if self._end is None else {**named, ROOT: self._end}

    @contextmanager
    def followed(self, optimizer: torch.optim.Optimizer) -> Generator[None, None, None]:
        """Until the optimizer's step."""
        hooks: list[Any] = [optimizer.register_step_pre_hook(lambda *_: self._over())]
        for n, layer in enumerate(self.layers):
            hooks.append(layer.register_forward_pre_hook(partial(self._before_layer, n), with_kwargs=True))
            hooks.append(layer.register_forward_hook(partial(self._returned, n)))
        self.live.watch = self._note
        try:
            yield
        finally:
            self.live.watch = None
            for hook in hooks:
                hook.remove()

    def gradient(self, parameter: torch.nn.Parameter) -> None:
        layer = self._layer_of.get(id(parameter), -1)
        self._undivided[layer] += parameter.numel() * parameter.element_size()

    def _before_layer(self, n: int, layer: Any, args: Any, kwargs: Any) -> None:
        given = args[0] if args else kwargs.get("hidden_states")
        if self._first_time(given):
            given.register_hook(lambda _: self._end_of(n))

    def _returned(self, n: int, layer: Any, args: Any, output: Any) -> None:
        returned = output[0] if isinstance(output, tuple) else output
        if self._first_time(returned):
            returned.register_hook(lambda _: self._begin(n))

    def _first_time(self, tensor: Any) -> bool:
        """Whether it is one of the forward, to which a backward will come; checkpointed layers run again in it."""
        in_forward = self._at is None and not self.passed
        return in_forward and isinstance(tensor, torch.Tensor) and tensor.requires_grad

    def _begin(self, n: int) -> None:
        if self._at is not None:
            self._end_of(self._at)
        elif self.passed:
            self.between = len(self.passed)
        self._at = n
        self._note()

    def _end_of(self, n: int) -> None:
        if self._at != n:
            return
        self._note()
        self._undivided.pop(n, None)
        self.passed.append(n)
        self._at = None

    def _over(self) -> None:
        if self._at is not None:
            self._end_of(self._at)
        self._note()
        self.live.watch = None
        self.root = self._undivided[-1]
        left = self.live.now[UNNAMED]
        whole = Held(left, self.live.now["gradients"])
        self._end = Stage(left, whole, Held(left, 2 * self.root))  # beside them what is added over ranks is laid flat

    def _note(self) -> None:
        activations, gradients = self.live.now[UNNAMED], self.live.now["gradients"]
        whole, undivided = Held(activations, gradients), Held(activations, sum(self._undivided.values()))
        stage = (len(self.passed), self._at is not None)
        most = self._stages.get(stage)
        if most is None:
            self._stages[stage] = Stage(activations, whole, undivided)
            return
        self._stages[stage] = Stage(
            max(activations, most.activations), _more(most.whole, whole), _more(most.undivided, undivided)
        )


def _more(one: Held, other: Held) -> Held:
    return max(one, other, key=lambda held: held.activations + held.gradients)

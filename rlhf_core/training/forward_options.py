"""Which optimisations a forward uses. None of them changes what it computes, beyond rounding."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypedDict

from rlhf_core.types.errors import ModelError

log = logging.getLogger("rlhf.models")


class ForwardArguments(TypedDict):
    """What ``completion_logprobs`` is told of the ways through a model."""

    shared_prefix: bool
    packed: bool
    chunked: bool


@dataclass(frozen=True, slots=True)
class ForwardOptions:
    """The optimisations of :func:`rlhf_core.training.forward.completion_logprobs`; a model may allow fewer.

    Example:
        ForwardOptions(packing=False)  # shared prompts and the chunked head, padded rows
    """

    share_prefix: bool = True
    """One forward per distinct prompt."""
    packing: bool = True
    """Sequences end to end in one row, no padding."""
    chunked_head: bool = True
    """The language-model head a chunk of tokens at a time."""

    def without(self, *names: str) -> ForwardOptions:
        """The same with some switched off."""
        return replace(self, **dict.fromkeys(names, False))

    def both(self, other: ForwardOptions) -> ForwardOptions:
        """Those that are on in both."""
        return self.without(*(name for name in self.names if name not in other.names))

    def alone(self, name: str) -> ForwardOptions:
        """Only one of them."""
        return replace(PLAIN, **{name: True})

    @property
    def names(self) -> list[str]:
        """Those that are on."""
        return [f.name for f in fields(self) if getattr(self, f.name)]

    @property
    def as_arguments(self) -> ForwardArguments:
        """As ``completion_logprobs`` takes them."""
        return {"shared_prefix": self.share_prefix, "packed": self.packing, "chunked": self.chunked_head}

    def state(self) -> dict[str, bool]:
        """For a checkpoint: ``ForwardOptions(**state)``."""
        return asdict(self)


ALL, PLAIN = ForwardOptions(), ForwardOptions(False, False, False)


def allowed(model: Any, wanted: ForwardOptions, *, packing_required: bool = False) -> ForwardOptions:
    """The optimisations that are wanted and that the model allows; what it does not is logged.

    Raises:
        ModelError: packing is required and impossible.
    """
    from rlhf_core.models.layers.trunk_and_head import base_model, checkpointing
    from rlhf_core.training.structure import structure

    name = type(base_model(model)).__name__
    if wanted.packing and not structure(model).pack:
        if packing_required:
            raise ModelError(
                f"{name} cannot be packed",
                why="its attention is not transformers' sdpa, or packed rows "
                "gave other hidden states than single sequences",
                fix="--set trainer.packing=auto, or model.attention=sdpa",
            )
        log.info("packing is off: %s does not allow it", name)
        wanted = wanted.without("packing")
    if wanted.share_prefix and not wanted.packing and checkpointing(model):
        log.warning(
            "prefix sharing is off: without packing it needs a cache, which gradient checkpointing forbids. "
            "Use --set trainer.packing=auto, or leave out model.gradient_checkpointing"
        )
        wanted = wanted.without("share_prefix")
    return wanted

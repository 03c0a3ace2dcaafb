"""Which cards each server gets that the ranks of one machine start; neither torch nor vLLM is imported."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlhf_core.config import BuildContext, ConfigError
from rlhf_plugin_preflight.cards import cards_here
from rlhf_plugin_preflight.memory.amounts import ranks_here

if TYPE_CHECKING:
    from rlhf_plugin_vllm.config import VllmConfig

VISIBLE = "CUDA_VISIBLE_DEVICES"


def cards_of_servers(
    named: str, arguments: Sequence[str], servers: int, ranks: int, cards: int, environ: Mapping[str, str] = os.environ
) -> list[list[str]]:
    """The cards of each server, rank by rank: those that are ``named``, else those that no rank trains on, else all.
    Servers share cards where there are too few.

    Args:
        named: what ``rollout.environment`` says of ``CUDA_VISIBLE_DEVICES``; "" for nothing.
        arguments: of each server, which may take several cards.
        servers: of all ranks on this machine.
        ranks: on this machine; they train on the first cards.
        cards: on this machine, where its own ``CUDA_VISIBLE_DEVICES`` does not say which the run may use.

    Returns:
        One list for each server, in the order of the ranks; empty lists where there is no card.

    Raises:
        ConfigError: a server takes more cards than there are.

    Example:
        >>> cards_of_servers("", ["--tensor-parallel-size=2"], servers=2, ranks=2, cards=8, environ={})
        [['2', '3'], ['4', '5']]
    """
    each = cards_of_one(arguments)
    usable = card_names(environ.get(VISIBLE, "")) or [str(n) for n in range(cards)]
    free = usable[ranks:]
    pool = card_names(named) or (free if len(free) >= servers * each else usable)
    if not pool:
        return [[] for _ in range(servers)]
    if each > len(pool):
        raise ConfigError(
            f"a vLLM server takes {each} cards, and there are {len(pool)} for it: {', '.join(pool)}",
            why="rollout.arguments ask for tensor, pipeline or data parallel",
            fix=f"name more in rollout.environment.{VISIBLE}, or lower --tensor-parallel-size",
        )
    return [[pool[(n * each + k) % len(pool)] for k in range(each)] for n in range(servers)]


def own_cards(config: VllmConfig, ctx: BuildContext) -> list[dict[str, str]]:
    """The variable that shows each of this rank's servers its cards; without a card nothing is set."""
    ranks, replicas = ranks_here(ctx.world_size), config.replicas
    first = int(os.environ.get("LOCAL_RANK", ctx.rank)) * replicas
    named = config.environment.get(VISIBLE, "")
    cards = cards_of_servers(named, config.arguments, max(first + replicas, ranks * replicas), ranks, cards_here())
    return [{VISIBLE: ",".join(of_one)} if of_one else {} for of_one in cards[first : first + replicas]]


def card_names(text: str) -> list[str]:
    """Of a value of ``CUDA_VISIBLE_DEVICES``."""
    return [name for part in text.split(",") if (name := part.strip())]


def cards_of_one(arguments: Sequence[str]) -> int:
    """Cards that one server takes."""
    kinds = (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"), ("--data-parallel-size", "-dp"))
    sizes = [option(arguments, *names) for names in kinds]
    return max(1, math.prod(int(size) for size in sizes if size is not None and size.isdigit()))


def option(arguments: Sequence[str], *names: str) -> str | None:
    """The last value of ``--name=value`` or two words, with hyphens or underscores; None where it is not given."""
    for n, argument in reversed(list(enumerate(arguments))):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") in names:
            return value if equals else next(iter(arguments[n + 1 : n + 2]), "")
    return None

"""Which cards a run takes, and what is free on them; nothing here makes a context on a card, which would take some
hundred MB of it for as long as the process lives."""

from __future__ import annotations

import logging
import os
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError
from rlhf_plugin_preflight.memory.amounts import ranks_here

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext

log = logging.getLogger("rlhf")
QUERY = ("nvidia-smi", "--query-gpu=uuid,memory.free", "--format=csv,noheader,nounits")


def check_cards(ctx: BuildContext) -> None:
    """Refuse a run that asks for a card that is not there, mention cards that it leaves unused, and let its processes
    fill gaps in a card's memory.

    Raises:
        ConfigError: ``strategy.device=cuda`` or ``model.gradient_checkpointing=offload`` without a card, or more
            processes on this machine than cards.
    """
    wanted = getattr(ctx.config.strategy, "device", "auto")
    if ctx.config.model.gradient_checkpointing == "offload" and (wanted == "cpu" or not cards_here()):
        raise ConfigError(
            "model.gradient_checkpointing=offload without a card",
            why="what layers are given lies in the host's memory already",
            fix="--set model.gradient_checkpointing=true",
        )
    if wanted == "cpu":
        return
    cards, ranks = cards_here(), ranks_here(ctx.world_size)
    if wanted == "cuda" and not cards:
        raise ConfigError(
            "strategy.device=cuda, and there is no card",
            why=f"torch {version('torch')} sees none",
            fix="install a torch with CUDA and check nvidia-smi (rlhf doctor), or --set strategy.device=auto",
        )
    if cards and ranks > cards:
        raise ConfigError(
            f"{ranks} processes on this machine need as many cards, and torch sees {cards}",
            fix=f"--nproc {cards}, more cards in CUDA_VISIBLE_DEVICES, or --set strategy.device=cpu",
        )
    if cards and getattr(ctx.config.rollout, "name", "native") == "native":  # vLLM's sleep does not work with them
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # lengths differ at every step
        if cards > ranks:
            log.warning("this run uses %d of %d cards: --nproc %d uses all of them", ranks, cards, cards)


def cards_here() -> int:
    """Cards that torch can use; no torch is imported that was built without CUDA."""
    try:
        if version("torch").endswith("+cpu"):
            return 0
    except PackageNotFoundError:
        pass
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def free_bytes(cards: int) -> int:
    """What is free on the fullest of the first cards, as the driver's tool says; where it says nothing, all of it."""
    import torch

    totals: dict[str, int] = {}
    for card in range(cards):
        properties: Any = torch.cuda.get_device_properties(card)
        totals[str(properties.uuid).removeprefix("GPU-")] = properties.total_memory
    try:
        lines = subprocess.run(QUERY, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
        free = {uuid.removeprefix("GPU-"): int(mib) << 20 for uuid, mib in (line.split(", ") for line in lines)}
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.info("nvidia-smi does not say what is free: %s", error)
        free = {}
    return min(free.get(uuid, total) for uuid, total in totals.items())

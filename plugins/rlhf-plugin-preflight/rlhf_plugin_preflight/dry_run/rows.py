"""The rows that a run would read, and what it names at the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.config import BuildContext, RunConfig
from rlhf_core.data import Datasets, PreferencePair, Prompt
from rlhf_core.models import ModelError
from rlhf_core.models.sources import hub_reachable
from rlhf_core.runs.launch.rows import remote_sources
from rlhf_core.types.messages import Demonstration, UnpairedPreference

DataRow = Prompt | PreferencePair | Demonstration | UnpairedPreference
READERS = {"token_advantages": "prompts", "pairs": "pairs", "unpaired": "unpaired"}
"""What a trainer feeds its loss -> method of ``Datasets`` that reads the rows."""


@dataclass(frozen=True)
class Rows:
    """Rows that were read.

    Example:
        Rows("prompts", train, heldout, dropped={"prompts_last_turn": 2}, weights={"pocket/assistant": 1.0})
    """

    what: str
    """``prompts``, ``pairs``, ``unpaired`` or ``demonstrations``."""
    train: Sequence[DataRow]
    heldout: Sequence[DataRow]
    dropped: Mapping[str, int]
    weights: Mapping[str, float]


def read_all(config: RunConfig, ctx: BuildContext) -> Rows | None:
    """Every row as the trainer would read it; None where it reads them in a way of its own, or they are at the hub."""
    remote = remote_sources(config)
    for source in remote:
        getattr(source, "look_up", lambda: None)()
    feeds = getattr(config.trainer, "feeds", None)
    what = (
        "prompts"
        if config.samples_itself
        else "demonstrations"
        if feeds in ("labels", "teacher")
        else READERS.get(str(feeds))
    )
    if remote or what is None:
        return None
    datasets = Datasets(config.dataset, ctx)
    train, heldout = (getattr(datasets, what)(split) for split in ("train", "heldout"))
    return Rows(what, train, heldout, dict(datasets.counts), datasets.weights)


def cause(error: Exception) -> str:
    """Type and first line of an error of another library."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


def check_hub_model(path: str, where: str) -> None:
    """Look a model up that a component names, unless it is here; nothing but its ``config.json`` is downloaded."""
    from transformers import AutoConfig

    from rlhf_core.models.paths import model_folder

    if path == "pocket" or Path(model_folder(path)).expanduser().exists():
        return
    try:
        AutoConfig.from_pretrained(path, local_files_only=not hub_reachable())
    except Exception as error:  # the hub fails in as many ways as there are networks
        raise ModelError(
            f"{where}: there is no folder '{path}' here, and the Hugging Face hub gives no model of that name",
            why=cause(error),
            fix="check the spelling and the network; for a private model set HF_TOKEN",
        ) from error

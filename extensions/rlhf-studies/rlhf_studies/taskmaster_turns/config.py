from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class TaskmasterTurnsConfig(StudyConfig):
    """Can a small model tell whether an agent's turn is right, in the dialogue before it? `rlhf train --algo prm` on
    Taskmaster's human verdicts, the turn as the one labelled step. Rows with the same first words are on one side of
    the split, a fifth held out, others for each seed; the AUC has a 95 % interval over dialogues. Beside it: what the
    turn's kind, length, place and words tell without a model."""

    name: str = "taskmaster_turns"
    component: ClassVar[str] = "rlhf_studies.taskmaster_turns.run:TaskmasterTurns"
    smoke: ClassVar[Mapping[str, Any]] = {"limit": 200, "train": smoke.OFFLINE}

    turn_model: str = "pocket-tools"
    """Hub id, folder or .gguf file."""
    data: Path | None = None
    """``tm-4_reward.jsonl.gz``; None takes that of $RLHF_TEST_DATA."""
    rows: int | None = None
    """Most training rows, the wrong ones first; None is all."""
    epochs: float = Field(default=2.0, gt=0)
    limit: int | None = None
    """Only the first rows of the file."""
    train: Mapping[str, Any] = {}
    """Further settings of the training."""

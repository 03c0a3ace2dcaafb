"""What every study does with its settings."""

from __future__ import annotations

from typing import Generic, TypeVar

from rlhf_study.config import StudyConfig

SettingsOf = TypeVar("SettingsOf", bound=StudyConfig)


class Study(Generic[SettingsOf]):
    """Keeps its settings; ``run`` and ``table`` are each study's own."""

    def __init__(self, config: SettingsOf) -> None:
        self.config = config

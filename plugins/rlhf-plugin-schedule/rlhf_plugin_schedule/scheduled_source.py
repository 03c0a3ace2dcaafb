"""Sets the scheduled settings of a step before anything of it is sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlhf_core.rl.build import OnlineParts, policy_terms
from rlhf_core.rl.sources import InlineSource, SourceBatch
from rlhf_core.rl.trainer import OnlineTrainer
from rlhf_core.training.trace import Timer
from rlhf_plugin_schedule.schedules import changed, read


class ScheduledSource(InlineSource):
    """An inline source whose every step first gets the values of its number; so a resumed run has them again.

    The metrics ``schedule/SETTING`` say them. Evaluations keep what the configuration says.
    """

    def __init__(self, trainer: OnlineTrainer, parts: OnlineParts) -> None:
        super().__init__(parts.source.collector, parts.source.weight_sync, parts.source.session)
        self.trainer, self.parts = trainer, parts
        self.schedules = read(trainer.config.schedules)
        self.run = trainer.ctx.config

    def next_batch(self, step: int, version: int, timer: Timer, number: int | None = None) -> SourceBatch:
        """Set the step's values, and sample with them."""
        values = {one.setting: one.value(step, self._configured(one.setting)) for one in self.schedules}
        self._set(values)
        batch = super().next_batch(step, version, timer, number)
        self._set_reward(self.run)  # evaluations score with the same reward
        return batch._replace(metrics={**batch.metrics, **{f"schedule/{key}": value for key, value in values.items()}})

    def _configured(self, setting: str) -> float:
        found: Any = self.run
        for key in _keys(setting):
            found = found[key] if isinstance(found, Mapping) else getattr(found, key)
        return float(found)

    def _set(self, values: dict[str, float]) -> None:
        run: Any = self.run
        for setting, value in values.items():
            run = changed(run, _keys(setting), value)
        parts, config = self.parts, run.trainer.micro_batches(self.trainer.ctx.world_size)
        self.trainer.config = parts.advantages.config = parts.update.config = parts.learner.settings = config
        parts.update.module.temperature = config.sampling.temperature
        sampling = config.sampling.params(support=config.sampling.truncates)
        self.collector.settings = replace(self.collector.settings, sampling=sampling)
        if any(setting.startswith("trainer.") for setting in values) and parts.trained.critic is None:
            parts.learner.loss.terms = tuple(policy_terms(config))
        self._set_reward(run)

    def _set_reward(self, run: Any) -> None:
        reward: Any = self.parts.rewards.default.reward
        if any(one.setting.startswith("reward.") for one in self.schedules):
            reward.config = run.reward


def _keys(setting: str) -> list[str]:
    return setting.split(".")


def scheduled(trainer: OnlineTrainer, parts: OnlineParts) -> OnlineParts:
    """The parts of a run, with a source that sets the values of each step."""
    return replace(parts, source=ScheduledSource(trainer, parts))

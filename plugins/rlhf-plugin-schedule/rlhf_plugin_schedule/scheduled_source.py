"""Sets the scheduled settings of a step before anything of it is sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.data import Prompt
from rlhf_core.rl.build import OnlineParts, policy_terms
from rlhf_core.rl.sources import InlineSource, SourceBatch
from rlhf_core.rl.trainer import OnlineTrainer
from rlhf_core.training.trace import Timer
from rlhf_plugin_schedule.adaptive import AdaptiveEntropy, ObservedUpdate
from rlhf_plugin_schedule.schedules import ENTROPY, SHOTS, Schedule, changed, check_shots, read


class ScheduledSource(InlineSource):
    """An inline source whose every step first gets the values of its number; so a resumed run has them again.

    The metrics ``schedule/SETTING`` say them. Evaluations keep what the configuration says.
    """

    def __init__(self, trainer: OnlineTrainer, parts: OnlineParts) -> None:
        super().__init__(parts.source.collector, parts.source.weight_sync, parts.source.session)
        self.schedules = read(trainer.config.schedules)
        self.run = trainer.ctx.config
        self.adaptive: AdaptiveEntropy | None = None
        if (one := next((one for one in self.schedules if one.shape == "adaptive"), None)) is not None:
            first: Any = self._configured(one.setting) if one.first is None else one.first
            self.adaptive = AdaptiveEntropy(one, first)
            parts = replace(parts, update=ObservedUpdate.of(parts.update, self.adaptive.observe))
        self.trainer, self.parts = trainer, parts
        self.shots: Shots | None = None
        if (examples := next((one for one in self.schedules if one.setting == SHOTS), None)) is not None:
            self.shots = self.collector.prompts.encode = Shots(examples, trainer)

    def next_batch(self, step: int, version: int, timer: Timer, number: int | None = None) -> SourceBatch:
        """Set the step's values, and sample with them."""
        follows = [one for one in self.schedules if one.shape != "adaptive"]
        values = {one.setting: one.value(step, self._configured(one.setting)) for one in follows}
        if self.adaptive is not None:
            values[ENTROPY] = self.adaptive.value
        if self.shots is not None:
            values[SHOTS] = self.shots.count = round(values[SHOTS])
        self._set({setting: value for setting, value in values.items() if setting != SHOTS})
        batch = super().next_batch(step, version, timer, number)
        self._set_reward(self.run)  # evaluations score with the same reward
        numbers = {f"schedule/{one.setting}": _number(one, values[one.setting]) for one in self.schedules}
        return batch._replace(metrics={**batch.metrics, **numbers})

    def state_dict(self) -> dict[str, Any]:
        """What is to be sampled next, and what an adaptive setting has come to."""
        own = {} if self.adaptive is None else {"adaptive": self.adaptive.state_dict()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Go on from every rank's :meth:`state_dict`."""
        super().load_state_dict(ranks)
        if self.adaptive is not None and "adaptive" in ranks[0]:
            self.adaptive.load_state_dict(ranks[0]["adaptive"])

    def _configured(self, setting: str) -> Any:
        if setting == SHOTS:
            return 0
        found: Any = self.run
        for key in _keys(setting):
            found = found[key] if isinstance(found, Mapping) else getattr(found, key)
        return found

    def _set(self, values: Mapping[str, Any]) -> None:
        run: Any = self.run
        for setting, value in values.items():
            run = changed(run, _keys(setting), value)
        parts, config = self.parts, run.trainer.micro_batches(self.trainer.ctx.world_size)
        self.trainer.config = parts.advantages.config = parts.update.config = parts.learner.settings = config
        parts.update.module.temperature = config.sampling.temperature
        sampling = config.sampling.params(support=config.sampling.truncates)
        self.collector.settings = replace(self.collector.settings, sampling=sampling)
        if any(setting.startswith("trainer.") for setting in values) and parts.trained.critic is None:
            terms = policy_terms(config)  # those of the model's parts stand behind
            parts.learner.loss.terms = (*terms, *parts.learner.loss.terms[len(terms) :])
        self._set_reward(run)

    def _set_reward(self, run: Any) -> None:
        reward: Any = self.parts.rewards.default.reward
        if any(one.setting.startswith("reward.") for one in self.schedules):
            reward.config = run.reward


def _number(one: Schedule, value: Any) -> float:
    """A value as a metric: of words 0 for the first, 1 for the last."""
    return float(value == one.last) if isinstance(value, str) else float(value)


class Shots:
    """Encodes training prompts with the first ``count`` examples, a blank line after each, before the last turn."""

    def __init__(self, schedule: Schedule, trainer: OnlineTrainer) -> None:
        inputs = trainer.inputs
        self.encode, self.context = inputs.prompts.encode, inputs.policy.context
        self.examples = [f"{prompt}\n{answer}\n\n" for prompt, answer in check_shots(schedule, schedule.setting)]
        self.count = max(int(schedule.first or 0), int(schedule.last))
        room, prompts = self.context - trainer.config.sampling.max_tokens, inputs.prompts.by_name().values()
        longest = max(len(self(prompt)) for prompt in prompts)
        if longest > room:
            raise ConfigError(
                f"a prompt has {longest} tokens with {self.count} examples, and {room} fit",
                why=f"the context is {self.context}, less trainer.sampling.max_tokens",
                fix="fewer or shorter examples, or set dataset.max_prompt_tokens lower",
            )

    def __call__(self, prompt: Prompt) -> tuple[int, ...]:
        *before, last = prompt.messages
        text = "".join([*self.examples[: self.count], str(last["content"])])
        return self.encode(replace(prompt, messages=(*before, {**last, "content": text})))


def _keys(setting: str) -> list[str]:
    return setting.split(".")


def scheduled(trainer: OnlineTrainer, parts: OnlineParts) -> OnlineParts:
    """The parts of a run, with a source that sets the values of each step."""
    source = ScheduledSource(trainer, parts)
    return replace(source.parts, source=source)

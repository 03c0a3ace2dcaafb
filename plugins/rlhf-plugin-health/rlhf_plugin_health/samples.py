"""What the completions of a step look like: repeated, cut off, in another form than required."""

from __future__ import annotations

from statistics import mean, pstdev

from rlhf_plugin_health.config import FormatDriftConfig, IdenticalConfig, LengthCollapseConfig, LengthRunawayConfig
from rlhf_plugin_health.watch import Metrics, Watch, number


class Identical(Watch[IdenticalConfig]):
    """Completions that are the same although they were drawn independently."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        surprise, groups = number(metrics, "repeat_surprise"), number(metrics, "identical_fraction")
        common = number(metrics, "commonest_fraction")
        if surprise is not None and surprise > self.config.max_surprise:
            return self.message(
                f"completions of a prompt repeat where chance would not repeat them ({surprise:.1f} nats each)",
                "the rollout engine or agent uses one fixed seed instead of each request's own (RolloutRequest.seed)",
                self.change("rollout.name", "native"),
            )
        if groups is not None and groups > self.config.max_groups:
            return self.message(
                f"in {groups:.0%} of the groups all completions are the same, so nothing can be compared",
                "the policy has collapsed, or the prompts are too easy",
                self.change("trainer.sampling.temperature", 1.0),
                self.change("trainer.kl.coefficient", 0.01),
            )
        if common is not None and common > self.config.max_commonest:
            return self.message(
                f"{common:.0%} of all completions are one and the same text, whatever the prompt (see samples.jsonl)",
                "the policy has collapsed to what the reward likes, or prompts are not in the form it was trained on",
                self.change("model.prompt_format", "auto"),
                self.change("trainer.kl.coefficient", 0.01),
            )
        return None


class LengthRunaway(Watch[LengthRunawayConfig]):
    """Completions that grow without end or are cut off."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        length, cut = number(metrics, "completion_length/mean"), number(metrics, "truncated_fraction")
        grown = None if length is None else self._grown(length)
        if cut is None or cut <= self.config.max_truncated:
            return grown
        return self.message(
            f"{cut:.0%} of the completions were cut off at max_tokens",
            "no stop string ends them (a base model goes on with a next question of its own), the end token was never "
            "learnt, or max_tokens is too small",
            self.change("trainer.sampling.stop", "[...]") + ": what follows the answers in samples.jsonl",
            self.change("trainer.sampling.max_tokens", "..."),
            self.change("trainer.mask_truncated", "true"),
        )

    def _grown(self, length: float) -> str | None:
        config = self.config
        start, before = self.start("length", length, config.settle), self.recent("length", length, config.window)
        if start is None or len(before) < config.settle:
            return None
        spread = max(pstdev(before), config.least_spread * mean(before))
        score = (length - mean(before)) / spread if spread else 0.0
        if score <= config.max_z and length <= config.max_growth * start:
            return None
        if score > config.max_z and self.streak < self.patience:
            self.memory["length"].pop()  # a jump is compared with what was before it until it has been reported
        return self.message(
            f"completions have {length:.0f} tokens on average, {length / max(start, 1e-9):.1f} times those of the "
            f"first steps; z-score {score:.1f} against the last {len(before)} steps",
            "the reward, or the mean over tokens, pays for length",
            self.change("trainer.reduction", "constant"),
            self.change("trainer.mask_truncated", "false"),
            self.change("trainer.kl.coefficient", 0.01),
        )


class LengthCollapse(Watch[LengthCollapseConfig]):
    """Completions that say next to nothing."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        config, length = self.config, number(metrics, "completion_length/mean")
        start = None if length is None else self.start("length", length, config.settle)
        if length is None or start is None or start <= config.floor:
            return None
        if length * config.max_shrink >= start and length > config.floor:
            return None
        return self.message(
            f"completions have {length:.1f} tokens on average, those of the first steps had {start:.1f}",
            "the reward, or the mean over a sequence, pays for brevity; or steps are too large and the policy ends at "
            "once",
            self.change("trainer.reduction", "constant"),
            self.change("trainer.kl.coefficient", 0.01),
            self.change("trainer.optimizer.learning_rate", "...") + ": a third",
        )


class FormatDrift(Watch[FormatDriftConfig]):
    """Answers that are still right but no longer in the required form."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        config = self.config
        strict, loose = self._fallen(metrics, config.strict), self._fallen(metrics, config.flexible)
        if strict is None or strict[0] <= config.max_drop or (loose is not None and loose[0] > 0.5 * strict[0]):
            return None
        flexible_note = f", while '{config.flexible}' did not" if loose is not None else ""
        return self.message(
            f"the score part '{config.strict}' fell to {strict[1]:.2f}, {strict[0]:.2f} below its best{flexible_note}: "
            "answers leave the form that a strict evaluation reads",
            "the verifier pays for an answer in any form, or the learning rate is too high",
            self.change("reward.verifier.format_weight", 0.2),
            self.change("trainer.optimizer.learning_rate", "..."),
            self.change("trainer.kl.coefficient", 0.01),
        )

    def _fallen(self, metrics: Metrics, part: str) -> tuple[float, float] | None:
        """How far a part's mean over the window lies below its best one, and that mean."""
        value = number(metrics, f"reward/part/{part}")
        if value is None:
            return None
        values = [*self.recent(part, value, self.config.window), value][-self.config.window :]
        if len(values) < self.config.window:
            return None
        now = mean(values)
        best = max([now, *self.memory.get(f"best {part}", [])])
        self.memory[f"best {part}"] = [best]
        return best - now, now

"""What the update looks like: spikes of KL and gradient, lost entropy, ratios that are wrong from the start."""

from __future__ import annotations

from statistics import median

from rlhf_plugin_health.config import EntropyCollapseConfig, GradientSpikeConfig, KLSpikeConfig, RatioDriftConfig
from rlhf_plugin_health.watch import Metrics, Watch, number


class KLSpike(Watch[KLSpikeConfig]):
    """The policy jumps away from the reference."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        config, kl = self.config, number(metrics, "kl")
        if kl is None:
            return None
        before = self.recent("kl", kl, config.window)
        if step == 1 and kl > config.first:
            return self.message(
                f"kl is {kl:.3g} nats per token before any update, where policy and reference are the same",
                "the engine samples at another temperature, truncates, or runs other weights than the reference",
                self.change("trainer.sampling.temperature", 1.0),
                self.change("rollout.name", "native"),
            )
        usual = median(before) if len(before) >= config.settle else None
        jumped = usual is not None and kl > max(config.floor, config.factor * usual)
        if not jumped and kl <= config.limit:
            return None
        against = "" if usual is None else f" ({usual:.3g} is the median of the last {len(before)} steps)"
        return self.message(
            f"kl is {kl:.3g} nats per token{against}",
            "steps that are too large, above all the first ones, when Adam divides by a second moment that is noise",
            *self.smaller_steps(),
        )


class GradientSpike(Watch[GradientSpikeConfig]):
    """A gradient norm far above the usual."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        config, norm = self.config, number(metrics, "grad_norm")
        if norm is None:
            return None
        before = self.recent("grad_norm", norm, config.window)
        usual = median(before) if len(before) >= config.settle else None
        if usual is None or norm <= max(config.floor, config.factor * usual):
            return None
        return self.message(
            f"grad_norm is {norm:.3g} ({usual:.3g} is the median of the last {len(before)} steps; see trace.jsonl)",
            "few or extreme advantages in this batch, importance ratios far from 1, or steps that are too large",
            self.change("trainer.optimizer.max_grad_norm", 0.5),
            *self.smaller_steps(),
        )


class EntropyCollapse(Watch[EntropyCollapseConfig]):
    """The policy stops exploring."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        config, entropy = self.config, number(metrics, "entropy")
        if entropy is None:
            return None
        start = self.start("entropy", entropy, config.settle)
        if start is None or entropy >= max(config.floor, config.fraction * start):
            return None
        has_entropy_coefficient = hasattr(getattr(self.run, "trainer", None), "entropy_coefficient")
        return self.message(
            f"entropy is {entropy:.3g} nats per token, {entropy / max(start, 1e-9):.0%} of what it was at first: soon "
            "all completions of a prompt are the same and teach nothing",
            "steps that are too large, or a clip range that holds rare tokens down",
            self.change("loss.clip_range_high", 0.28),
            self.change("trainer.entropy_coefficient", 0.001) if has_entropy_coefficient else "",
            *self.smaller_steps(),
        )


class RatioDrift(Watch[RatioDriftConfig]):
    """Engine and trainer do not mean the same log-probabilities."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        gap, worst = number(metrics, "drift/mean_abs"), number(metrics, "drift/sequence_max_abs")
        ratio = number(metrics, "importance_ratio")
        engine = [
            self.change("trainer.sampling.temperature", 1.0),
            self.change("rollout.name", "native"),
            self.change("model.dtype", "float32"),
        ]
        if gap is not None and gap > self.config.max_gap:
            return self.message(
                f"the engine's logprobs differ from the trainer's by {gap:.3g} nats per token with the same weights",
                "another temperature or truncation in the engine, stale engine weights, or another dtype",
                *engine,
            )
        if worst is not None and worst > self.config.max_token_gap:
            return self.message(
                f"single tokens differ by {worst:.3g} nats between engine and trainer, most do not",
                "completions are cut or shifted on one side, for example at a token that is taken for padding",
                *engine,
            )
        if ratio is not None and abs(ratio - 1) > self.config.max_ratio:
            return self.message(
                f"the mean importance ratio is {ratio:.3g}, where 1 is expected",
                "the policy has left the one that sampled: too many or too large updates of one rollout batch",
                self.change("trainer.epochs_per_rollout_batch", 1),
                self.change("trainer.optimizer.learning_rate", "..."),
            )
        return None

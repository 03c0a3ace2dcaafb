"""The monitor: gathers the values of a step, reads the signals, and warns or stops."""

from __future__ import annotations

import enum
import math
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.hooks import StopRun, hookimpl
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_hacking.classic import ClassicLength, ClassicRewards, length_std, length_sums
from rlhf_plugin_hacking.config import DistributionConfig, HackingConfig
from rlhf_plugin_hacking.divergence import Divergence
from rlhf_plugin_hacking.dominance import Dominance
from rlhf_plugin_hacking.length import Length, add_slopes, length_slope
from rlhf_plugin_hacking.ranks import Measured, gather_measured
from rlhf_plugin_hacking.second import SecondReward
from rlhf_plugin_hacking.signals import Finding, Row, Signal, normal_kl, number, pooled


class Level(enum.IntEnum):
    """How sure the monitor is; the metric ``hacking/level`` has the number."""

    OK = 0
    WARNING = 1
    HARD_STOP = 2


class HackingMonitor:
    """Watches the metrics of each step; in a run also its rollouts, scores and evaluations."""

    def __init__(self, config: HackingConfig, ctx: BuildContext) -> None:
        self.config, self.run, self.session, self.strategy = config, ctx.config, ctx.session, ctx.strategy
        self.signals: dict[str, Signal] = {}
        if config.preset == "classic":
            self.signals["length"] = ClassicLength(config.classic, config.warmup, self.change)
            self.signals["distribution"] = ClassicRewards(config.classic, config.warmup, self.change)
        else:
            self._sequential(config)
        self.decisive = {"divergence"} if config.preset == "sequential" else set(self.signals)
        """Signals that must alarm for a HARD_STOP."""
        self.fresh: list[tuple[Rollout, Score]] = []
        """Of this rank, scored since the last step was over."""
        self.evaluated: dict[str, float] = {}
        """The last held-out evaluation that no step has seen."""
        self.samples_steps = False
        """Whether steps bring completions of their own; of an offline run only evaluations do."""
        self.last_warned: dict[str, int] = {}
        """Step of the last warning, by alarm."""
        self.readings = 0
        second = config.divergence.second if config.divergence else None
        self.second = SecondReward(config.divergence, ctx) if second and config.divergence and self.session else None
        if self.session is not None:
            self.session.hooks.manager.register(self, name=f"monitor '{config.name}' {id(self)}")

    def _sequential(self, config: HackingConfig) -> None:
        warmup, alpha = config.warmup, config.alarm_share
        if config.length is not None:
            self.signals["length"] = Length(config.length, warmup, alpha, self.change)
        if config.distribution is not None:
            self.signals["distribution"] = Distribution(config.distribution, warmup)
        if config.divergence is not None:
            self.signals["divergence"] = Divergence(config.divergence, warmup, alpha, config.false_stop, self.change)
        if config.dominance is not None:
            self.signals["dominance"] = Dominance(config.dominance, warmup, alpha, self.change)

    @hookimpl
    def rlhf_run_start(self, event: Any) -> None:
        """Say how often the preset cries in runs in which nothing is wrong."""
        by_steps = ", sigma of steps" * (self.config.preset == "classic" and self.config.classic.sigma == "steps")
        self.session.say(false_alarms(f"{self.config.preset}{by_steps}"))

    @hookimpl
    def rlhf_rewards_ready(self, event: Any) -> None:
        """Keep this step's completions until it is over, for the second reward and the slope of scores over lengths."""
        if self.second is not None or "length" in self.signals:
            self.fresh += zip(event.rollouts, event.scores)

    @hookimpl
    def rlhf_eval_end(self, event: Any) -> None:
        self.evaluated |= {k.removeprefix("eval/"): v for k, v in event.metrics.items() if k.startswith("eval/")}

    def observe(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """A warning if anything alarms that has not been reported in the last ``repeat_every`` steps."""
        row = self._row(metrics)
        if not row:
            return None
        measured: dict[str, float] = {}
        findings: dict[str, Finding] = {}
        for name, signal in self.signals.items():
            values, finding = signal.read(row)
            measured |= values
            findings |= {name: finding} if finding else {}
        measured |= {k: row[k] for k in ("second_missing",) if k in row}
        enough = self.decisive <= findings.keys() and len(findings) >= self.config.hard_stop_signals
        hard = enough or any(f.hard for f in findings.values())
        level = Level.HARD_STOP if hard else Level.WARNING if findings else Level.OK
        self._write(step, {**measured, "level": float(level), "signals": float(len(findings))})
        if level is Level.HARD_STOP and self.config.stop:
            raise StopRun(self._message(level, findings))
        if row.get("second_missing") and "second" not in row and not findings:
            return self._blind(step)
        key = f"{level.name} {' '.join(findings)}"
        if not findings or step - self.last_warned.get(key, -math.inf) < self.config.repeat_every:
            return None
        self.last_warned[key] = step
        return self._message(level, findings)

    def _blind(self, step: int) -> str | None:
        """Warn now and then that there is no second reward to compare with: silence would look like a healthy run."""
        if self.second is None or step - self.last_warned.get("blind", -math.inf) < self.config.repeat_every:
            return None
        self.last_warned["blind"] = step
        return (
            f"{self.config.name}: the second reward has no scores, so divergence sees nothing. Likely cause: "
            f"{self.second.problem}. Change: fix it, or choose another"
        )

    def _row(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """What the signals read, the same on every rank; {} for a step that shows nothing (an update without rollouts
        of its own)."""
        evaluated, self.evaluated = self.evaluated, {}
        fresh, self.fresh = self.fresh, []
        self.samples_steps = self.samples_steps or "completion_length/mean" in metrics or "reward/mean" in metrics
        row = dict(metrics if self.samples_steps else evaluated)
        if self.samples_steps and not {"completion_length/mean", "reward/mean", "proxy"} & set(row):
            self.evaluated = evaluated
            return {}
        heldout = {k: evaluated[f"reward/{k}"] for k in ("mean", "std") if f"reward/{k}" in evaluated}
        measured = gather_measured(self.strategy, lambda: self._measure(fresh)) if self.samples_steps else []
        row |= add_slopes([of_rank.slope for of_rank in measured])
        row |= length_std([of_rank.lengths for of_rank in measured]) if measured else {}
        if self.second is not None and any(of_rank.completions for of_rank in measured):
            self.readings += 1
            pairs = [of_rank.pairs for of_rank in measured if of_rank.pairs is not None]
            row |= self.second.compare(pairs) if pairs else {}
        elif self.second is None and self.samples_steps and len(heldout) == 2:
            proxy = {"proxy": row.get("reward/mean", math.nan), "proxy_std": row.get("reward/std", math.nan)}
            row |= {**proxy, "second": heldout["mean"], "second_std": heldout["std"]}
        return row

    def _measure(self, fresh: Sequence[tuple[Rollout, Score]]) -> Measured:
        slope, lengths = (length_slope(fresh) if "length" in self.signals else {}), length_sums(fresh)
        due = self.config.divergence is not None and self.readings % self.config.divergence.every == 0
        if self.second is None or not fresh or not due:
            return Measured(len(fresh), slope, lengths)
        ranks, rank = (self.strategy.world_size, self.strategy.rank) if self.strategy is not None else (1, 0)
        return Measured(len(fresh), slope, lengths, self.second.measure(fresh, ranks, rank))

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        if self.session is not None:
            self.session.metrics.log_more(step, {f"hacking/{k}": v for k, v in values.items()})

    def _message(self, level: Level, findings: Mapping[str, Finding]) -> str:
        descriptions = "; ".join(f"{name}: {f.problem}" for name, f in findings.items())
        causes = "; ".join(dict.fromkeys(f.cause for f in findings.values()))
        changes = ", ".join(dict.fromkeys(c for f in findings.values() for c in f.change))
        return f"{self.config.name} {level.name}: {descriptions}. Likely cause: {causes}. Change: {changes}"

    def change(self, path: str, value: Any) -> str:
        """What to type, and what it is now. Example: ``--set trainer.kl.coefficient=0.1 (now 0.0)``"""
        now: Any = self.run
        for part in path.split("."):
            now = getattr(now, part, None)
        return f"--set {path}={value}" + ("" if now is None else f" (now {now})")

    def state_dict(self) -> dict[str, Any]:
        return {
            "signals": deepcopy({k: s.memory for k, s in self.signals.items()}),
            "said": dict(self.last_warned),
            "evaluated": dict(self.evaluated),
            "samples_steps": self.samples_steps,
            "readings": self.readings,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        for name, signal in self.signals.items():
            signal.memory = deepcopy(state["signals"][name])
        self.last_warned = {k: int(v) for k, v in state["said"].items()}
        self.evaluated, self.samples_steps = dict(state["evaluated"]), bool(state["samples_steps"])
        self.readings = int(state["readings"])

    def close(self) -> None:
        """Leave the hooks and close the second reward; idempotent."""
        if self.session is not None and self.session.hooks.manager.is_registered(self):
            self.session.hooks.manager.unregister(self)
        if self.second is not None:
            self.second.close()
            self.second = None


def false_alarms(preset: str) -> str:
    """Simulated healthy runs that get a warning, as the study ``monitor_simulated_traces`` recorded them."""
    rates = tomllib.loads(Path(__file__).with_name("false_alarms.toml").read_text())[preset]
    kinds = [f"{kind}: {', '.join(f'{r:.1%} ({n} steps)' for n, r in of.items())}" for kind, of in rates.items()]
    return f"monitor hacking, preset {preset}: simulated runs that get a false warning: {'; '.join(kinds)}"


class Distribution:
    """KL(warm-up || now) of the rewards, both taken for normal distributions. It never alarms."""

    def __init__(self, config: DistributionConfig, warmup: int) -> None:
        self.config, self.warmup = config, warmup
        self.memory: dict[str, Any] = {"warmup": [], "step": []}

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        """Moments, not a histogram: with 64 scores its KL's noise is as large as what a run's first steps move."""
        centre, deviation = number(row, "reward/mean"), number(row, "reward/std")
        memory = self.memory
        if centre is None or deviation is None:
            return {}, None
        if len(memory["warmup"]) < self.warmup:
            memory["warmup"] = [*memory["warmup"], [centre, deviation]]
            return {}, None
        memory["step"] = [*memory["step"], [centre, deviation]]
        if len(memory["step"]) < self.config.every:
            return {}, None
        kl = normal_kl(pooled(memory["warmup"]), pooled(memory["step"]))
        memory["step"] = []
        return {"reward_kl": kl}, None

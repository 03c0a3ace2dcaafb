"""Held-out evaluation during training: fixed prompts, fixed seeds, one completion each; and the run's benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

from rlhf_core.data.datasets import Datasets
from rlhf_core.data.order import by_source
from rlhf_core.distributed.group import RankZero, engine_on_every_rank
from rlhf_core.distributed.rank_zero import alone
from rlhf_core.plugins.protocols import Benchmark
from rlhf_core.plugins.strategy_protocols import Collectives
from rlhf_core.runs.metrics import mean, win_rate
from rlhf_core.runs.session import RunSession
from rlhf_core.training.generation import RolloutGenerator, rollout_metrics
from rlhf_core.training.rewards import RewardManager, score_metrics
from rlhf_core.training.trace import messages_of
from rlhf_core.types.errors import EngineUnavailable
from rlhf_core.types.rollouts import Media, Prompt, PromptGroup, Rollout, SamplingParams, ScoreStatus

SAMPLES_KEPT = 8
"""Completions per evaluation in ``samples.jsonl``."""
R = TypeVar("R")


@dataclass(frozen=True)
class Evaluation:
    """``golds`` (None without a gold score) and ``scores`` are aligned with ``texts``, which only rank 0 has."""

    metrics: Mapping[str, float]
    texts: list[str]
    golds: list[float] | None
    scores: list[float | None] | None = None
    """The run's reward, None where it is missing."""
    media: Sequence[tuple[Media, ...]] = ()
    """Sounds of completions that have some, aligned with ``texts``; their places in ``samples.jsonl``."""

    @property
    def missing(self) -> dict[str, int]:
        """Status -> how many completions have no score because of it."""
        counts = {s.value: int(self.metrics.get(f"eval/reward/{s.value}", 0)) for s in ScoreStatus}
        return {status: count for status, count in counts.items() if count}

    def state(self) -> dict[str, Any]:
        """JSON values for a checkpoint."""
        sounds = {"media": [[asdict(one) for one in media] for media in self.media]} if self.media else {}
        return {"metrics": dict(self.metrics), "texts": self.texts, "golds": self.golds, "scores": self.scores} | sounds

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None) -> Evaluation | None:
        """Undo :meth:`state`; None stays None."""
        if not state:
            return None
        fields = dict(state)
        fields["media"] = [tuple(Media(**one) for one in of_text) for of_text in state.get("media", ())]
        return cls(**fields)


def sample_share(
    session: RunSession,
    generator: RolloutGenerator,
    groups: Sequence[PromptGroup],
    sampling: SamplingParams,
    version: int,
    work: str,
) -> tuple[list[Prompt], list[Rollout]]:
    """This rank's share of some held-out prompts, and a completion of each; the same seeds every time."""
    strategy, engine = session.strategy, generator.engine
    share = groups[strategy.rank :: strategy.world_size]
    with engine_on_every_rank(strategy), session.work(work, len(share)) as on_ended, engine.reporting(on_ended):
        rollouts = generator.sample(share, sampling, version, tag="eval") if share else []
    return [g.prompt for g in share], rollouts


def evaluate_on_rank_zero(
    strategy: Collectives, rows: Sequence[R], evaluate: Callable[[Sequence[R]], Evaluation]
) -> Evaluation:
    """What the rows of all ranks come to; texts and sounds, which rank 0 writes, stay with it."""
    rank_zero, ranks = RankZero(strategy), strategy.world_size
    shards = rank_zero.gather(rows)
    with rank_zero.section() as section:
        count = sum(map(len, shards))
        evaluation = evaluate([shards[i % ranks][i // ranks] for i in range(count)])  # undoes rows[rank::ranks]
        section.sent = [evaluation, *[replace(evaluation, texts=[], media=())] * (ranks - 1)]
    return section.received


@dataclass(eq=False)
class PolicyEvaluator:
    """Samples the held-out prompts and scores them; every rank takes its share."""

    generator: RolloutGenerator
    rewards: RewardManager
    datasets: Datasets
    groups: Sequence[PromptGroup]
    sampling: SamplingParams
    benchmarks: Sequence[Benchmark]
    """Those that this rank runs: rank 0 all, the others none."""
    whole_weights: Callable[[], AbstractContextManager[None]]
    session: RunSession
    has_benchmarks: bool

    def evaluate(
        self,
        step: int,
        version: int,
        count: int,
        more: Callable[[Evaluation], Mapping[str, float]] = lambda evaluation: {},
    ) -> Evaluation | None:
        """Evaluate the policy and record the result; all ranks call it together."""
        with self.whole_weights():
            evaluation = self.run(version, count) if count and self.groups else None
            benchmark_metrics = self._benchmarks_on_first(version)
        if evaluation is None:
            self.session.metrics.log_eval(step, benchmark_metrics)
            return None
        self.session.counts.update({f"eval_score_{status}": n for status, n in evaluation.missing.items()})
        self.session.samples(step, sample_rows(self.groups, evaluation))  # before hooks hear of the evaluation
        self.session.metrics.log_eval(step, {**evaluation.metrics, **benchmark_metrics, **more(evaluation)})
        return evaluation

    def run(self, version: int, count: int) -> Evaluation:
        """Evaluate on the first ``count`` prompts, with the same seeds every time; of a mixture each source as well."""
        groups, session = self.groups[:count], self.session
        prompts, rollouts = sample_share(session, self.generator, groups, self.sampling, version, "evaluation")
        scores = self.rewards.score(prompts, rollouts)
        golds = gold_rows(self.datasets, prompts, rollouts)
        return evaluate_on_rank_zero(session.strategy, list(zip(rollouts, scores, golds)), self._result)

    def _result(self, rows: Sequence[Any]) -> Evaluation:
        metrics = rollout_metrics([r[0] for r in rows], [r[1] for r in rows])
        metrics |= gold_metrics(rows, "gold") | self._by_source(rows)
        have_gold = bool(rows) and all(r[2] is not None for r in rows)
        return Evaluation(
            {f"eval/{k}": v for k, v in metrics.items()},
            [r[0].text for r in rows],
            [float(r[2]["value"]) for r in rows] if have_gold else None,
            [r[1].value if r[1].ok else None for r in rows],
            [r[0].media for r in rows],
        )

    def _by_source(self, rows: Sequence[Any]) -> dict[str, float]:
        places_by_source = by_source([g.prompt.source for g in self.groups[: len(rows)]])
        metrics: dict[str, float] = {}
        for source, indices in places_by_source.items() if len(places_by_source) > 1 else ():
            source_rows = [rows[index] for index in indices]
            metrics |= score_metrics([r[1] for r in source_rows], f"{source}/reward")
            metrics |= gold_metrics(source_rows, f"{source}/gold")
        return metrics

    def _benchmarks_on_first(self, version: int) -> dict[str, float]:
        """What rank 0's benchmarks give, on rank 0; if its engine is gone in one, all ranks say so."""
        metrics: dict[str, float] = {}
        lost: EngineUnavailable | None = None
        with alone(self.session.strategy, "benchmarks"):
            try:
                metrics = self._run_benchmarks(version)
            except EngineUnavailable as error:  # raised where the others hear of it, who wait for rank 0 here
                lost = error
        if self.has_benchmarks:
            with engine_on_every_rank(self.session.strategy):
                if lost is not None:
                    raise lost
        return metrics

    def _run_benchmarks(self, version: int) -> dict[str, float]:
        """Metrics of every benchmark, ``eval/NAME/...``; one that fails is counted and left out."""
        metrics: dict[str, float] = {}
        for benchmark in self.benchmarks:
            entry = self.session.components.of(benchmark)
            evaluate = partial(benchmark.evaluate, self.generator.engine, version)
            label, key = f"evaluate() of {entry.label}", f"{entry.key}:evaluate"
            result = self.session.hooks.call(label, key, evaluate, through=EngineUnavailable) or {}
            name = entry.key.removeprefix("benchmark/")
            metrics |= {f"eval/{name}/{key}": float(value) for key, value in result.items()}
        return metrics


def sample_rows(groups: Sequence[PromptGroup], evaluation: Evaluation) -> list[dict[str, Any]]:
    """Rows for ``samples.jsonl``: the first prompts with their completions; ``media`` of those that have sounds."""
    rows: list[dict[str, Any]] = [
        {"prompt_id": g.prompt.id, "prompt": g.prompt.text, "completion": text}
        for g, text in zip(groups[:SAMPLES_KEPT], evaluation.texts)
    ]
    for row, group, media in zip(rows, groups, evaluation.media):
        if media:
            row |= {"messages": messages_of(group), "media": [asdict(one) for one in media]}
    return rows


def before_and_after(
    groups: Sequence[PromptGroup], before: Evaluation | None, after: Evaluation | None
) -> dict[str, Any]:
    """Win rate by the gold score over the start of the run, and examples; a sound is told by its file."""
    if before is None or after is None:
        return {}
    rows = list(zip(groups, _shown(before), _shown(after)))[:3]
    examples = [{"prompt": g.prompt.text, "before": text_before, "after": text} for g, text_before, text in rows]
    if before.golds is None or after.golds is None:
        return {"examples": examples}
    wins = win_rate(after.golds, before.golds)
    return {
        "gold_win_rate": wins.rate,
        "gold_win_rate_interval": [wins.low, wins.high],
        "gold_win_rate_prompts": wins.n,
        "examples": examples,
    }


def _shown(evaluation: Evaluation) -> list[str]:
    sounds = [", ".join(one.path for one in media) for media in evaluation.media]
    return [sound or text for text, sound in zip_longest(evaluation.texts, sounds, fillvalue="")]


def gold_rows(
    datasets: Datasets, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]
) -> list[Mapping[str, Any] | None]:
    """The dataset's gold score of each completion, None where it has none."""
    return [datasets.gold(r.sample(p)) for p, r in zip(prompts, rollouts)]


def gold_metrics(rows: Sequence[Any], prefix: str) -> dict[str, float]:
    """Means of the gold score and its parts; nothing unless every one of the (rollout, score, gold) rows has one."""
    golds = [r[2] for r in rows]
    if not golds or any(g is None for g in golds):
        return {}
    return {
        f"{prefix}/{name}": mean([float(g[name]) for g in golds]) for name in golds[0] if all(name in g for g in golds)
    }

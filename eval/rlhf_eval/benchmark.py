"""A suite that is ready to run: prompts encoded, verifiers started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.cli import context_of
from rlhf_core.config import BuildContext
from rlhf_core.data import DatasetError
from rlhf_core.models import Formatter
from rlhf_core.rewards import Sample
from rlhf_core.rollouts import FinishReason, Rollout, RolloutRequest, request_seed
from rlhf_eval.grading import Grader, reward_of
from rlhf_eval.items import Item, encode, items, rows, section, worked_examples
from rlhf_eval.judging import BatchedJudge
from rlhf_eval.report import metrics

if TYPE_CHECKING:
    from rlhf_eval.suites import SuiteConfig

Row = dict[str, Any]
EVERY_S = 2.0
"""Seconds between two reports of what has ended."""


def check_rows(suite: SuiteConfig, ctx: BuildContext) -> BuildContext:
    """Read a resolved suite's rows, check that its verifier can judge each, and return a context that has them."""
    reward = reward_of(suite, ctx)
    dataset = section(suite, suite.path)
    ready = context_of(ctx.registry, seed=ctx.seed, dataset=dataset, reward=reward, policy=ctx.policy)
    try:
        prompts = rows(suite, ready.datasets)
    except DatasetError as error:
        if suite.path is not None or "dataset.path" not in error.fix:
            raise
        fix = "without a network, download its rows elsewhere and give them with --data FILE"
        raise DatasetError(error.what, where=error.where, why=error.why, fix=fix) from error
    if not prompts:
        raise DatasetError(f"suite '{suite.name}' has no rows", fix="give a file with at least one")
    reward.preflight(ready)
    getattr(suite.verifier, "preflight", lambda _: None)(ready)
    worked_examples(suite, ctx, prompts)
    return ready


class SuiteBenchmark:
    """Samples completions of a suite's prompts from an engine and judges them."""

    def __init__(self, suite: SuiteConfig, ctx: BuildContext) -> None:
        self.suite, self.seed, self.policy = suite, ctx.seed, ctx.policy
        ready = check_rows(suite, ctx)
        formatter = Formatter(ctx.policy.tokenizer, suite.prompt_format or "auto")
        prompts = rows(suite, ready.datasets)
        self.items: list[Item] = items(suite, prompts, worked_examples(suite, ctx, prompts), formatter.chat)
        self.ids = encode(self.items, formatter, ctx.policy.context)
        self.sampling = suite.sampling.params()
        self.grader = Grader(suite, ready)

    @classmethod
    def from_config(cls, suite: SuiteConfig, ctx: BuildContext) -> SuiteBenchmark:
        return cls(suite.resolved(ctx), ctx)

    def evaluate(self, engine: Any, policy_version: int) -> Mapping[str, float]:
        """Sample every prompt, judge, and return metrics by name: ``pass@1``, ``truncated`` and so on."""
        return metrics(self.rows(range(len(self.items)), engine, policy_version), self.suite.pass_from)

    def rows(self, which: Sequence[int], engine: Any, policy_version: int = 0) -> list[Row]:
        """One row per completion, which depends on its prompt, the seed and its index alone."""
        owners = [i for i in which for _ in range(self.suite.samples)]
        rollouts = engine.generate(self._requests(which), self.sampling, policy_version)
        return self._judged(owners, rollouts)

    def stream(self, which: Sequence[int], engine: Any, took: Callable[[Sequence[Row], int], None]) -> list[Row]:
        """As :meth:`rows`, as they end: ``took`` gets new rows (perhaps none) and the tokens drawn so far."""
        if not hasattr(engine, "generate_each"):
            rows = self.rows(which, engine)
            took(rows, sum(r["tokens"] for r in rows))
            return rows
        owners = [i for i in which for _ in range(self.suite.samples)]
        judge = BatchedJudge(lambda batch: self._judged([owners[i] for i, _ in batch], [r for _, r in batch]))

        def ended(new: Sequence[tuple[int, Rollout]], tokens: int) -> None:
            took(judge.put(new), tokens)

        with judge:
            rollouts = engine.generate_each(self._requests(which), self.sampling, 0, ended, EVERY_S)
            took(judge.rest(), sum(len(r.completion_ids) for r in rollouts))
        order = {(self.items[i].prompt.id, r.group_index): n for n, (i, r) in enumerate(zip(owners, rollouts))}
        return sorted(judge.rows, key=lambda row: order[row["id"], row["sample"]])

    def _requests(self, which: Sequence[int]) -> list[RolloutRequest]:
        return [self._request(i, j) for i in which for j in range(self.suite.samples)]

    def _judged(self, owners: Sequence[int], rollouts: Sequence[Rollout]) -> list[Row]:
        """A row for each rollout; ``owners`` are the places of their prompts."""
        cut = [self.own_text(r) for r in rollouts]
        samples = [
            Sample(self.items[i].prompt, text, r.finish_reason) for i, r, (text, _) in zip(owners, rollouts, cut)
        ]
        verdicts = self.grader.grade(samples)
        return [self._row(i, r, *c, v) for i, r, c, v in zip(owners, rollouts, cut, verdicts)]

    def _request(self, i: int, j: int) -> RolloutRequest:
        name = self.items[i].prompt.id
        limit = min(self.sampling.max_tokens, self.policy.context - len(self.ids[i]))
        return RolloutRequest(name, self.ids[i], j, request_seed(self.seed, "benchmark", name, j), limit)

    def own_text(self, rollout: Rollout) -> tuple[str, str | None]:
        """What is judged, and the stop string that ended it: the first one that stands in the text."""
        text = rollout.text
        if rollout.finish_reason is not FinishReason.STOP:
            return text, None
        stops = [(at, s) for s in self.sampling.stop if (at := text.find(s)) >= 0]
        if not stops:
            return text, None
        at, stop = min(stops)
        return text[: at + len(stop)] if self.suite.keep_stop else text[:at], stop

    def _row(self, i: int, rollout: Rollout, text: str, stop: str | None, verdict: Mapping[str, Any]) -> Row:
        item, count = self.items[i], len(rollout.completion_ids)
        total = float(rollout.logprobs_T.sum(dtype="float64"))
        return {
            "id": item.prompt.id,
            "sample": rollout.group_index,
            **verdict,
            "finish_reason": rollout.finish_reason.value,
            "stop": stop,
            "tokens": count,
            "logprob": total,
            "mean_logprob": total / count if count else None,
            "seed": rollout.seed,
            "answer": item.prompt.answer,
            "prompt": [dict(m) for m in item.messages],
            "completion": text,
            **({"meta": dict(item.prompt.meta)} if item.prompt.meta else {}),
        }

    def close(self) -> None:
        self.grader.close()

"""An engine that takes weights while it samples: which version sampled which tokens, and what learns from it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.rollouts import Rollout, RolloutRequest, SamplingParams, VersionSpan
from rlhf_plugin_report.trace import versions_text

from .conftest import ONLINE, Train
from .test_weight_sync import OwnWeights


class InFlightConfig(ComponentConfig):
    """The native engine over weights of its own, which may change between two tokens."""

    name: str = "in_flight"
    component: ClassVar[str] = f"{__name__}:InFlight"


class InFlight(OwnWeights):
    """From the second batch on the second half of each completion is sampled with the next weights."""

    in_flight = True

    def __init__(self, config: InFlightConfig, ctx: BuildContext) -> None:
        super().__init__(config, ctx)  # pyright: ignore[reportArgumentType]
        self.version, self.changed, self.calls = -1, threading.Condition(), 0
        self.threads: set[str] = set()

    def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        assert threading.current_thread() is threading.main_thread(), "the learner does not wait for what is sampled"
        with self.changed:
            super().update_weights(version, tensors)
            self.version = version
            self.changed.notify_all()

    def generate(self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int) -> Any:
        self.calls += 1
        half = replace(sampling, max_tokens=sampling.max_tokens // 2)
        with self.changed:
            assert self.version >= policy_version
            first, began_with = self.engine.generate(requests, half, self.version), self.version
            if self.calls > 1:
                assert self.changed.wait_for(lambda: self.version > began_with, 60), "no weights came"
            rest = [replace(r, prompt_ids=r.prompt_ids + f.completion_ids) for r, f in zip(requests, first)]
            second = self.engine.generate(rest, half, self.version)
        return [_joined(r, f, s) for r, f, s in zip(requests, first, second)]


def _joined(request: RolloutRequest, first: Rollout, second: Rollout) -> Rollout:
    if first.finish_reason != "length":
        return replace(first, versions=(VersionSpan((0, len(first.completion_ids)), first.policy_version),))
    ids = first.completion_ids + second.completion_ids
    middle, end = len(first.completion_ids), len(ids)
    spans = (VersionSpan((0, middle), first.policy_version), VersionSpan((middle, end), second.policy_version))
    if first.policy_version == second.policy_version:
        spans = (VersionSpan((0, end), first.policy_version),)
    logprobs_T = np.concatenate([first.logprobs_T, second.logprobs_T])
    return replace(second, prompt_ids=request.prompt_ids, completion_ids=ids, logprobs_T=logprobs_T,
                   policy_version=first.policy_version, text=first.text + second.text, versions=spans)  # fmt: skip


def test_completions_go_on_with_the_weights_of_the_next_step(train: Train) -> None:
    trainer = {
        "steps": 3,
        "eval_samples": 0,
        "checkpoint_every": 0,
        "trace_prompts": 8,
        "rollouts": {"max_staleness": 1},
        "sampling": {"max_tokens": 8},
        "optimizer": {"learning_rate": 0.03, "warmup_steps": 0},
        "entropy_coefficient": 0.1,
        "drop_constant_groups": False,
    }
    components = {("rollout", "in_flight"): f"{__name__}:InFlightConfig"}
    train(ONLINE, change={"trainer": trainer, "rollout": "in_flight"}, components=components)
    rows = list(read_jsonl(train.folder / "run" / "trace.jsonl"))
    metrics = {r["step"]: r for r in read_jsonl(train.folder / "run" / "metrics.jsonl") if "staleness/mean" in r}
    for step, now in ((1, 0), (2, 1), (3, 2)):
        completions = [c for r in rows if r["step"] == step and r.get("event") == "prompt" for c in r["completions"]]
        spans = [span for c in completions for span in c["versions"]]
        assert {v for _, _, v in spans} == ({0} if now == 0 else {now - 1, now})
        ages = [now - v for start, end, v in spans for _ in range(start, end)]
        assert metrics[step]["staleness/mean"] == np.mean(ages)
        assert metrics[step]["staleness/max"] == max(ages)
        gaps: dict[int, list[float]] = {now - 1: [], now: []}
        for c in completions:
            gap_T = np.abs(np.array(c["logprobs"]) - np.array(c["trainer_logprobs"]))
            for start, end, version in c["versions"]:
                gaps[version] += gap_T[start:end].tolist()
        assert max(gaps[now]) < 1e-4, "each token's behaviour logprob is of the weights that sampled it"
        assert now == 0 or np.mean(gaps[now - 1]) > 1e-3
        words = "version 0" if now == 0 else f"versions {now - 1} to {now}"
        assert versions_text(completions) == words

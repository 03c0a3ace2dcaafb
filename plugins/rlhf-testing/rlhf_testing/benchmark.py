"""Conformance of benchmarks, against a stand-in engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_testing.agent import FakeEngine, check_seeds
from rlhf_testing.config import built, check_config
from rlhf_testing.report import require
from rlhf_testing.samples import policy_context


def check_benchmark(config: ComponentConfig, ctx: BuildContext | None = None) -> None:
    """Check a benchmark: finite metrics by name, the same for the same policy; no two requests alike; the policy
    version is passed on.

    Args:
        ctx: passed to ``build``; None makes one with the built-in model, whose tokenizer encodes prompts. What is
            evaluated is a stand-in that answers with random letters.
    """
    check_config(config, "benchmark")
    ctx = ctx or policy_context()
    config.preflight(ctx)
    benchmark: Any = built(config, "benchmark", ctx)
    try:
        engine = FakeEngine()
        metrics = benchmark.evaluate(engine, 7)
        check_metrics(config, metrics)
        require(bool(engine.requests), config, "evaluate() samples from the engine", "it made no request")
        rule = "the policy version is passed on"
        require(all(version == 7 for _, version in engine.calls), config, rule, f"{[v for _, v in engine.calls]}")
        check_seeds(config, engine)
        again = dict(benchmark.evaluate(FakeEngine(), 7))
        rule = "the same policy gets the same metrics"
        fix = "derive seeds with request_seed(ctx.seed, ...), and keep nothing between two evaluations"
        require(again == dict(metrics), config, rule, f"{again} after {dict(metrics)}", fix)
    finally:
        for _ in range(2 if callable(getattr(benchmark, "close", None)) else 0):
            benchmark.close()


def check_metrics(config: ComponentConfig, metrics: Any) -> None:
    is_mapping = isinstance(metrics, Mapping) and bool(metrics)
    require(is_mapping, config, "evaluate() returns metrics by name", f"{type(metrics).__name__} {metrics!r:.80}")
    bad = {
        k: v
        for k, v in metrics.items()
        if not isinstance(k, str) or isinstance(v, str) or not isinstance(v, int | float) or not math.isfinite(v)
    }
    require(not bad, config, "metrics are finite numbers", repr(bad), "float(...), and leave out what does not exist")

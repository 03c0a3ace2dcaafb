"""The real vLLM is sent weights while it samples: who sampled which token, and with which logprob."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rlhf_core.config import BuildContext
from rlhf_core.models import LoadedModel
from rlhf_core.rollouts import Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_testing import policy_context

PYTHON = os.environ.get("RLHF_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="RLHF_VLLM_PYTHON names no interpreter of an environment with vLLM"),
]
SAMPLING = SamplingParams(max_tokens=200, temperature=2.0)
"""So hot that completions are long."""
ARGUMENTS = ["--enforce-eager", "--max-num-seqs=32"]
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}  # fmt: skip
LIMIT = 1e-4


@pytest.fixture(params=["full", "lora"])
def ctx(request: pytest.FixtureRequest) -> BuildContext:
    ctx = policy_context()
    if request.param == "full":
        return ctx
    model = get_peft_model(copy.deepcopy(ctx.policy.model), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    return ctx.with_(policy=LoadedModel(model, ctx.policy.tokenizer, ctx.policy.source, ctx.policy.context))


@pytest.fixture
def engine(ctx: BuildContext) -> Iterator[VllmEngine]:
    config = VllmConfig(
        python=PYTHON, arguments=tuple(ARGUMENTS), environment=ENVIRONMENT, in_flight=True, max_concurrent=8
    )
    built = VllmEngine(config, ctx)
    yield built
    built.close()


def moved(model: Any, version: int) -> dict[str, torch.Tensor]:
    """Trained weights, each moved at random, those of adapters farther."""
    draw = torch.Generator().manual_seed(version)
    rows = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    scale = 0.3 if any("lora_" in name for name in rows) else 0.03

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return scale * torch.randn(tensor.shape, generator=draw)

    return {name: p * (1 + noise(p)) + 0.1 * noise(p) for name, p in rows.items()}


def gaps(model: Any, weights: Any, rollout: Rollout) -> torch.Tensor:
    """Difference of each token's logprob from the forward of transformers with some weights, ``[T]``."""
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
    with torch.no_grad():
        output = torch.func.functional_call(model, weights, (ids,))
    logits_TV = output.logits[0, len(rollout.prompt_ids) - 1 : -1] / SAMPLING.temperature
    own_T = torch.log_softmax(logits_TV, -1).gather(-1, ids[0, len(rollout.prompt_ids) :, None])[:, 0]
    return (own_T - torch.tensor(rollout.logprobs_T)).abs()


def under_way(engine: VllmEngine, sampling: Future[Any]) -> bool:
    """Wait until the server samples some completions; False once all have ended."""
    while not sampling.done():
        with urllib.request.urlopen(f"{engine.fleet.replicas[0].url}/metrics", timeout=30) as answer:
            rows = answer.read().decode().splitlines()
        if sum(float(row.split()[-1]) for row in rows if row.startswith("vllm:num_requests_running")) >= 4:
            return True
        time.sleep(0.02)
    return False


def test_each_span_has_the_logprobs_of_its_version(ctx: BuildContext, engine: VllmEngine) -> None:
    model, encode = ctx.policy.model, ctx.policy.tokenizer.encode
    weights = [moved(model, 0)]
    engine.update_weights(0, weights[0])
    requests = [RolloutRequest(f"p{n}", tuple(encode(f"What is {n}?")), 0, n) for n in range(512)]
    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(engine.generate, requests, SAMPLING, 0)
        while len(weights) < 5 and under_way(engine, sampling):
            weights.append(moved(model, len(weights)))
            engine.update_weights(len(weights) - 1, weights[-1])
        rollouts = sampling.result(600)
    several = [r for r in rollouts if len(r.versions) > 1]
    assert len(several) >= 4, "too few were under way for a test"
    for rollout in several[:24]:
        for span in rollout.versions:
            tokens = slice(*span.span)
            assert float(gaps(model, weights[span.version], rollout)[tokens].max()) < LIMIT
            if span.version and span.span[1] - span.span[0] >= 4:
                assert float(gaps(model, weights[span.version - 1], rollout)[tokens].max()) > 10 * LIMIT
    for rollout in [r for r in rollouts[::16] if len(r.versions) == 1]:
        assert float(gaps(model, weights[rollout.policy_version], rollout).max()) < LIMIT
    assert engine.fleet.counts == {"taken_out": 0, "brought_back": 0}


def test_grpo_trains_while_completions_go_on(tmp_path: Path) -> None:
    settings = ["rollout.name=vllm", "rollout.in_flight=true", f"rollout.python={PYTHON}", "trainer.steps=4"]
    settings += ["trainer.rollouts.max_staleness=2", "trainer.eval_samples=0", "trainer.gold_samples=0", "threads=1"]
    settings += ["trainer.group_size=4", "trainer.rollout_batch_size=32", "trainer.sampling.temperature=2"]
    settings += ["rollout.max_concurrent=1"]  # sampling takes longer than learning
    settings += ["trainer.sampling.max_tokens=128", f"rollout.arguments={json.dumps(ARGUMENTS)}"]
    settings += [f"rollout.environment.{name}='{value}'" for name, value in ENVIRONMENT.items()]
    words = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic"]
    words += ["--run-dir", str(tmp_path / "run")]
    words += [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    report = summary["reports"]["vllm"]
    assert report["in_flight"]["completions"] == 4 * 32
    assert report["in_flight"]["of_several_versions"] > 0
    assert report["canary_largest"] < LIMIT
    assert "not exactly reproducible" in summary["conditions"]["rollout vllm"]["in_flight"]

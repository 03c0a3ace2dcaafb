"""The decoding step as a CUDA graph: what it samples, when it is captured, and that the host waits for none of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from rlhf_core.models import ModelConfig, load_policy
from rlhf_core.models.precision import set_precision
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_native.captured_step import CapturedStep
from rlhf_plugin_native.decode_step import agrees
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_native.sampling import sampling_forwards
from tests.shadow_cuda.device import host_of
from tests.shadow_cuda.recorder import RECORDER


def test_a_graph_does_nothing_before_it_is_replayed_and_must_not_wait() -> None:
    x, total = torch.ones(2, device="cuda"), torch.zeros(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    doubled = x * 2
    total.add_(doubled)
    graph.capture_end()
    assert total.tolist() == [0.0, 0.0]
    assert doubled.isnan().all()
    x.fill_(3)
    graph.replay()
    graph.replay()
    assert (doubled.tolist(), total.tolist()) == ([6.0, 6.0], [12.0, 12.0])
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="not permitted"):
        x.sum().item()
    graph.capture_end()


@pytest.mark.parametrize("path", ["pocket", pytest.param("pocket-tools", marks=pytest.mark.long)])
def test_a_captured_step_samples_what_the_plain_one_does(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of different length, rows that enter and leave, a cache that moves between two blocks."""
    graphs, replays = 0, 0
    begin, replay = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.replay

    def counted_begin(graph: Any, **options: Any) -> None:
        nonlocal graphs
        graphs += 1
        begin(graph, **options)

    def counted_replay(graph: Any) -> None:
        nonlocal replays
        replays += 1
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", counted_begin)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted_replay)
    policy = load_policy(ModelConfig(path=path))
    policy.model.to("cuda")
    prompts = [tuple(policy.tokenizer.encode(text)) for text in ("What is 2 + 3?", "Hi", "Tell me a story.")]
    requests = [RolloutRequest(f"{n}", prompts[n % 3], 0, n, 8 + 8 * n) for n in range(9)]
    sampling = SamplingParams(max_tokens=120, min_tokens=100)
    plain, captured = (
        NativeEngine(policy.model, policy.tokenizer, policy.context, max_concurrent=5, compile=compiled)
        for compiled in (False, True)
    )
    want = plain.generate(requests, sampling, 0)
    RECORDER.take()
    got = captured.generate(requests, sampling, 0)
    waits = [e for e in RECORDER.take() if e.kind in ("wait", "copy") and "CapturedStep.__call__" in e.within]
    for one, other in zip(want, got, strict=True):
        assert one.completion_ids == other.completion_ids
        assert other.logprobs_T == pytest.approx(one.logprobs_T, abs=1e-4)
    assert 3 < graphs < 30
    assert replays > 4 * graphs
    assert not [e for e in waits if "agrees" not in e.within]


def test_a_model_that_cannot_be_captured_is_decoded_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    policy = load_policy(ModelConfig(path="pocket"))
    policy.model.to("cuda")
    norm = policy.model.model.norm
    norm.register_forward_hook(lambda module, args, out: out * float(out.abs().max() >= 0))
    request = [RolloutRequest("0", tuple(policy.tokenizer.encode("Hi")), 0, 0, 20)]
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context, compile=True)
    assert len(engine.generate(request, SamplingParams(max_tokens=20), 0)) == 1
    assert "rollout.compile has no effect" in caplog.text


def test_in_another_thread_it_is_not_captured(caplog: pytest.LogCaptureFixture) -> None:
    """Where rollouts are sampled ahead; the learner's thread uses the card meanwhile."""
    policy = load_policy(ModelConfig(path="pocket"))
    policy.model.to("cuda")
    request = [RolloutRequest("0", tuple(policy.tokenizer.encode("Hi")), 0, 0, 20)]
    sampling = SamplingParams(max_tokens=20)
    plain, engine = (
        NativeEngine(policy.model, policy.tokenizer, policy.context, compile=compiled) for compiled in (False, True)
    )
    want = plain.generate(request, sampling, 0)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(engine.generate, request, sampling, 0).result()
    assert [r.completion_ids for r in got] == [r.completion_ids for r in want]
    assert "sampled ahead" in caplog.text


def test_a_graph_casts_weights_by_itself() -> None:
    """The casts of autocast's cache are freed whenever another thread's forward has ended."""
    policy = load_policy(ModelConfig(path="pocket"))
    policy.model.to("cuda")
    set_precision(policy.model, "bf16")
    weights = [m.weight for m in policy.model.model.layers.modules() if isinstance(m, torch.nn.Linear)]
    step = CapturedStep(policy.model)
    with sampling_forwards(policy.model), torch.no_grad():
        assert agrees(policy.model, step, tokens=3)
    cast = [args[0] for func, args, *_ in step.graph.operations if func is torch.ops.aten._to_copy.default]
    assert {id(host_of(weight)) for weight in weights} <= set(map(id, cast))

"""Tokens per second of sampling with vLLM beside the native engine, and what a sync costs; with vLLM's own Python.

vLLM cannot be kept from ending a completion without changing its logprobs, so that what was sampled is counted. Every
round has a new version of the weights, and an engine's pause is what it takes until it can sample from it. On CUDA
weights are float32 and engines compute in bfloat16; on a CPU vLLM is not compiled and computes in float32.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from scripts.bench._processor import device_name
from scripts.bench._work import numbered

DEFAULT_SIZES = {"cuda": "64x8x256", "cpu": "8x4x64"}
ROUNDS = {"cuda": 5, "cpu": 3}
WARM_UP_TOKENS = 8
STEP = 1e-4
"""What is added to every weight, of its size, for a new version."""
SHARE = 0.4
"""Of the card, for vLLM in the process; servers that share the card take :data:`SERVERS_SHARE`."""
SERVERS_SHARE = 0.3
CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",
}


class Size(NamedTuple):
    """Prompts, completions of each, and most tokens of each completion."""

    prompts: int
    group: int
    tokens: int


def size_of(text: str) -> Size:
    """``64x8x256``."""
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) for part in parts):
        raise SystemExit(f"RLHF_VLLM_SIZE='{text}' is no size; write prompts x completions x tokens, such as 64x8x256")
    return Size(*map(int, parts))


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    return {"rollout": rollout}


def lacking(*packages: str) -> None:
    """Refuse to go on without packages or a model."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise SystemExit(
            f"this environment has no {' and no '.join(missing)}; run with the Python of one that has "
            f"{', '.join(packages)} beside the toolkit"
        )
    model = os.environ.get("RLHF_VLLM_MODEL")
    if not model or not Path(model, "config.json").is_file():
        raise SystemExit("set RLHF_VLLM_MODEL to a folder with a model's config.json and safetensors")


def device_type() -> str:
    """``cuda`` where there is a card."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def versions() -> dict[str, str]:
    """Of what the record's other versions leave out."""
    installed = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    return {name: version for name, version in installed.items() if name in ("vllm", "vllm-cpu", "trl", "flash-attn")}


class Round(NamedTuple):
    pause_s: float
    """Until it can sample from a new version."""
    sample_s: float
    release_s: float
    """Until it has given its memory back, where it does."""
    sync_bytes: int
    tokens: int
    """That were sampled."""

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.sample_s


def rollout() -> dict[str, Any]:
    """Tokens per second, pauses and bytes of each engine."""
    lacking("vllm", "rlhf_plugin_vllm")
    kind = device_type()
    size = size_of(os.environ.get("RLHF_VLLM_SIZE") or DEFAULT_SIZES[kind])
    policy = loaded(os.environ["RLHF_VLLM_MODEL"], kind)
    engines = engines_of(policy, kind)
    try:
        rounds = in_turns(engines, policy, size, ROUNDS[kind])
    finally:
        for engine, _ in engines.values():
            getattr(engine, "close", lambda: None)()
    return {
        "work": f"{size.prompts} prompts x {size.group} completions of up to {size.tokens} tokens",
        "device": device_name(),
        "versions": versions(),
        **summary(rounds),
    }


def loaded(path: str, kind: str) -> Any:
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import load_policy
    from rlhf_core.models.precision import set_precision

    policy = load_policy(ModelConfig(path=path, max_context=2048))
    policy.model.to(kind).eval()
    set_precision(policy.model, "bf16" if kind == "cuda" else "fp32")
    return policy


def engines_of(policy: Any, kind: str) -> dict[str, tuple[Any, Any]]:
    """Each engine by name, with the report that it writes."""
    from rlhf_core.models.layers.matmul import use_matmul_backend
    from rlhf_plugin_native.engine import NativeEngine
    from rlhf_plugin_vllm.colocated import ColocatedEngine
    from rlhf_plugin_vllm.colocated_config import ColocatedConfig
    from rlhf_testing import policy_context

    use_matmul_backend("auto")
    of_cpu: dict[str, Any] = {"arguments": {"enforce_eager": True}, "environment": CPU_ENVIRONMENT}
    here = policy_context().with_(policy=policy)
    colocated = ColocatedEngine(ColocatedConfig(gpu_memory=SHARE, **(of_cpu if kind == "cpu" else {})), here)
    engines: dict[str, tuple[Any, Any]] = {
        "native": (NativeEngine(policy.model, policy.tokenizer, policy.context), {}),
        "vllm_colocated": (colocated, here.report),
    }
    if python := os.environ.get("RLHF_VLLM_PYTHON"):
        engines["vllm"] = servers(policy, kind, python)
    return engines


def servers(policy: Any, kind: str, python: str) -> tuple[Any, Any]:
    """One server of its own: on the last card where there are several, else beside the policy."""
    import torch

    from rlhf_plugin_vllm.config import VllmConfig
    from rlhf_plugin_vllm.engine import VllmEngine
    from rlhf_testing import policy_context

    there = policy_context().with_(policy=policy)
    arguments, environment = ("--enforce-eager",), CPU_ENVIRONMENT
    if kind == "cuda":
        cards = torch.cuda.device_count()
        arguments = () if cards > 1 else (f"--gpu-memory-utilization={SERVERS_SHARE}",)
        environment = {"CUDA_VISIBLE_DEVICES": str(cards - 1)}
    settings: dict[str, Any] = {"python": python, "arguments": arguments, "environment": environment}
    return VllmEngine(VllmConfig(**settings), there), there.report


def in_turns(engines: dict[str, tuple[Any, Any]], policy: Any, size: Size, rounds: int) -> dict[str, list[Round]]:
    names = list(engines)
    taken: dict[str, list[Round]] = {name: [] for name in names}
    for version in range(rounds + 1):
        new_version(policy.model, version)
        turn = size if version else size._replace(tokens=WARM_UP_TOKENS)
        for name in names[version % len(names) :] + names[: version % len(names)]:
            round_ = one_round(*engines[name], policy, turn, version)
            if version:
                taken[name].append(round_)
    return taken


def one_round(engine: Any, report: Any, policy: Any, size: Size, version: int) -> Round:
    """Give an engine the weights, sample, and let it sleep."""
    from rlhf_core.types.rollouts import RolloutRequest, SamplingParams

    prompts = [tuple(policy.tokenizer(text)["input_ids"]) for text in numbered(size.prompts)]
    requests = [
        RolloutRequest(f"{p}", ids, g, p * size.group + g) for p, ids in enumerate(prompts) for g in range(size.group)
    ]
    sampling = SamplingParams(max_tokens=size.tokens)
    pause_s = 0.0
    if hasattr(engine, "update_weights"):
        pause_s = timed(lambda: engine.update_weights(version, dict(policy.model.named_parameters())))
    rollouts: list[Any] = []
    sample_s = timed(lambda: rollouts.extend(engine.generate(requests, sampling, version)))
    release_s = timed(engine.release_memory) if hasattr(engine, "release_memory") else 0.0
    tokens = sum(len(r.completion_ids) for r in rollouts)
    return Round(pause_s, sample_s, release_s, report.get("vllm", {}).get("sync_bytes", 0), tokens)


def new_version(model: Any, version: int) -> None:
    """Change every weight a little, as a step does."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + STEP * (-1) ** version)


def timed(work: Callable[[], object]) -> float:
    """Seconds, with what a card still computes."""
    import torch

    gc.collect()
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def summary(rounds: dict[str, list[Round]]) -> dict[str, Any]:
    speeds = {name: [turn.speed for turn in turns] for name, turns in rounds.items()}
    figures: dict[str, Any] = {}
    for name, turns in rounds.items():
        figures[name] = {
            "tokens_per_second": round(statistics.median(speeds[name]), 1),
            "tokens_per_second_by_round": [round(speed, 1) for speed in speeds[name]],
            "tokens_by_round": [turn.tokens for turn in turns],
        }
        if name != "native":
            ratios = [a / b for a, b in zip(speeds[name], speeds["native"], strict=True)]
            figures[name] |= {
                "times_native": round(statistics.median(ratios), 2),
                "times_native_by_round": [round(ratio, 2) for ratio in ratios],
                "sync_pause_seconds": round(statistics.median(turn.pause_s for turn in turns), 3),
                "release_seconds": round(statistics.median(turn.release_s for turn in turns), 3),
                "bytes_per_sync": turns[-1].sync_bytes,
            }
    return {"rounds": len(rounds["native"]), "load_average": [round(x, 2) for x in os.getloadavg()], **figures}

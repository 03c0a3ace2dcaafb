"""What the memory plan says of vLLM in the training process against the memory that it takes, on a CPU.

All of vLLM is the memory of this process alone (``uss``) that came with the engine and its first weights, after a
smaller engine has loaded the libraries: vLLM packs weights into memory that no tensor owns.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from typing import Any

from scripts.bench.vllm import CPU_ENVIRONMENT

SETTINGS: dict[str, Any] = {
    "arguments": {"enforce_eager": True, "max_num_seqs": 32},
    "environment": CPU_ENVIRONMENT,
}
CONTEXT = 2048


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    """The model of RLHF_VLLM_MODEL, a folder with safetensors."""
    path = os.environ.get("RLHF_VLLM_MODEL")
    return {} if path is None else {os.path.basename(path.rstrip("/")): lambda: measured(path)}


def measured(path: str) -> dict[str, Any]:
    import torch

    from rlhf_core.models import ModelConfig, load_policy
    from rlhf_plugin_vllm.colocated import ColocatedEngine
    from rlhf_plugin_vllm.colocated_config import ColocatedConfig
    from rlhf_testing import policy_context

    torch.set_num_threads(1)
    config, ctx = ColocatedConfig(**SETTINGS), policy_context()
    first = ColocatedEngine(config, ctx)
    first.update_weights(0, dict(ctx.policy.model.named_parameters()))
    first.close()
    del first
    policy = load_policy(ModelConfig(path=path, max_context=CONTEXT))
    before = private_bytes()
    engine = ColocatedEngine(config, ctx.with_(policy=policy))
    engine.update_weights(0, dict(policy.model.named_parameters()))
    whole, cache = private_bytes() - before, cache_of(engine)
    engine.close()
    planned = planned_parts(path)
    every = sum(planned.values())
    return {
        "planned": planned,
        "measured": {"engine KV cache": cache, "all": whole},
        "errors": {
            "engine KV cache": round(planned["engine KV cache"] / cache - 1, 4),
            "all": round(every / whole - 1, 4),
        },
    }


def planned_parts(path: str) -> dict[str, int]:
    """Of a run of grpo with this model."""
    from rlhf_core.cli.options import open_plugins, resolve_options
    from rlhf_core.plugins.context import BuildContext
    from rlhf_plugin_preflight.memory.footprint import footprint

    registry, _ = open_plugins()
    settings = ["rollout.name=vllm_colocated", f"model.max_context={CONTEXT}", "trainer.sampling.max_tokens=32"]
    settings += [f"rollout.environment.{name}='{value}'" for name, value in SETTINGS["environment"].items()]
    names = {"algo": "grpo", "reward": "verifier", "dataset": "pocket/arithmetic", "model": path}
    config = resolve_options(registry, (), tuple(settings), names).config
    engine = footprint(BuildContext(config=config, registry=registry, seed=0), on_cpu=True).engine
    assert engine is not None
    return dict(engine.parts)


def cache_of(engine: Any) -> int:
    """Bytes of the tensors with keys and values."""
    core = engine.vllm._llm.llm_engine
    runner = core.model_executor.driver_worker.worker.model_runner
    return sum(t.numel() * t.element_size() for t in runner.kv_caches)


def private_bytes() -> int:
    """Main memory that this process alone has, what was freed given back."""
    import psutil  # pyright: ignore[reportMissingModuleSource]

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(psutil.Process().memory_full_info().uss)

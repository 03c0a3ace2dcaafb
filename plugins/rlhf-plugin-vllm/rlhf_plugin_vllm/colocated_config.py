"""Settings of vLLM in the training process; importing this imports neither torch nor vLLM."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from rlhf_core.api import BuildContext, ComponentConfig


class ColocatedConfig(ComponentConfig):
    """Samples with vLLM in the training process, on the policy's device, which is handed its weights directly."""

    name: str = "vllm_colocated"
    component: ClassVar[str] = "rlhf_plugin_vllm.colocated:ColocatedEngine"

    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of ``vllm.LLM``: ``{"enforce_eager": true, "max_num_seqs": 64}``."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables that vLLM reads, set before it is imported: ``{"VLLM_CPU_KVCACHE_SPACE": "1"}``."""
    gpu_memory: float = Field(0.4, gt=0, lt=1)
    """Share of a GPU's memory that vLLM may take, for weights and cached keys and values."""
    sleep: bool = True
    """Give that memory back while the policy is updated, on CUDA; vLLM for CPUs cannot."""
    canary_tolerance: float | None = Field(None, gt=0)
    """After each version of the weights vLLM's logprobs of eight completions are compared with the trainer's. A token
    may differ by so many nats. None takes 0.001 in float32, 0.3 otherwise, and limits by what the first version shows
    of rounding. An engine whose logprobs do not change stops the run in any case."""
    allow_untested: bool = False
    """Use a version of vLLM that the tests were not run with."""

    def preflight(self, ctx: BuildContext) -> None:
        """Import vLLM in a process of its own, before a model is loaded; a dry run only looks for it.

        Raises:
            ConfigError: it is not there, does not import, is untested, or cannot be used with the run's settings.
        """
        from rlhf_plugin_vllm.colocated_checks import check_colocated

        check_colocated(self, ctx)

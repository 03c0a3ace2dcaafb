"""Settings of vLLM in the training process; importing this imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig

if TYPE_CHECKING:
    from rlhf_plugin_preflight.memory.engine import CardsAsked, EngineFacts, EngineLayout, EngineMemory


class ColocatedConfig(ComponentConfig):
    """Samples with vLLM in the training process, on the policy's device, which is handed its weights directly."""

    name: str = "vllm_colocated"
    component: ClassVar[str] = "rlhf_plugin_vllm.colocated:ColocatedEngine"

    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of ``vllm.LLM``: ``{"enforce_eager": true, "max_num_seqs": 64}``."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables that vLLM reads, set before it is imported: ``{"VLLM_CPU_KVCACHE_SPACE": "1"}``."""
    gpu_memory: float = Field(0.4, gt=0, lt=1)
    """Share of the device's memory that vLLM may take, for weights and cached keys and values; on CPUs of main memory,
    where VLLM_CPU_KVCACHE_SPACE in ``environment`` gives the cache so many GiB instead."""
    sleep: bool = True
    """Give that memory back while the policy is updated, on CUDA; vLLM for CPUs cannot."""
    canary_tolerance: float | None = Field(None, gt=0)
    """After each version of the weights vLLM's logprobs of eight completions are compared with the trainer's. A token
    may differ by so many nats. None takes 0.001 in float32, 0.3 otherwise, and limits by what the first version shows
    of rounding. An engine whose logprobs do not change stops the run in any case."""
    allow_untested: bool = False
    """Use a version of vLLM that the tests were not run with."""

    def memory(self, facts: EngineFacts) -> EngineMemory:
        from rlhf_plugin_vllm.memory import colocated_memory

        return colocated_memory(self, facts)

    def memory_changes(self) -> Sequence[tuple[str, str, ColocatedConfig]]:
        """Settings with which it holds less: (setting, cost, configuration with it)."""
        from rlhf_plugin_vllm.memory import colocated_changes

        return colocated_changes(self)

    @classmethod
    def layouts(cls, asked: CardsAsked) -> Iterator[EngineLayout]:
        """How it would use cards, for ``rlhf memory plan --splits``."""
        from rlhf_plugin_vllm.layouts import colocated_layouts

        return colocated_layouts(asked, asked.own if isinstance(asked.own, cls) else None)

    def preflight(self, ctx: BuildContext) -> None:
        """Import vLLM in a process of its own, before a model is loaded; a dry run only looks for it."""
        from rlhf_plugin_vllm.colocated_checks import check_colocated

        check_colocated(self, ctx)

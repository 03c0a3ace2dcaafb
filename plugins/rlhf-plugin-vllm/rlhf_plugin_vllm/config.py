"""The engine's settings; importing this imports neither torch nor an HTTP client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError

if TYPE_CHECKING:
    from rlhf_plugin_preflight.memory.engine import CardsAsked, EngineFacts, EngineLayout, EngineMemory

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names of this machine in an address."""


class VllmConfig(ComponentConfig):
    """Samples with vLLM servers, given by address or started by the run, which are sent the weights of each version."""

    not_inputs: ClassVar[Set[str]] = frozenset({"python"})

    name: str = "vllm"
    component: ClassVar[str] = "rlhf_plugin_vllm.engine:VllmEngine"

    urls: tuple[str, ...] = ()
    """Addresses of running servers, such as ``http://127.0.0.1:8000``; each is one replica. Several ranks take them in
    turn; where there are more ranks than servers, the last ranks ask servers of the first. None are given: the run
    starts ``replicas`` servers."""
    replicas: int = Field(1, ge=1)
    """Servers that each rank starts, on ports of this machine that are free then."""
    python: str | None = None
    """Interpreter of an environment with vLLM, which starts servers; vLLM is not installed beside the toolkit."""
    arguments: tuple[str, ...] = ()
    """Further options of servers that are started, as on vLLM's command line: ``["--tensor-parallel-size=2"]``."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of servers that are started. The cards in ``CUDA_VISIBLE_DEVICES`` are divided among the
    servers of a machine; without it each gets its own of those that no rank trains on, if there are enough, else it is
    beside a rank. A server takes as many as ``--tensor-parallel-size`` says."""
    start_s: float = Field(600.0, gt=0)
    """Seconds until a started server answers."""
    request_s: float = Field(600.0, gt=0)
    """Seconds for one completion; a replica that takes longer is taken out, and its requests go to others."""
    update_s: float = Field(600.0, gt=0)
    """Seconds for a replica to take a version of the weights."""
    retries: int = Field(3, ge=0)
    """How often in all replicas that were taken out are tried again; servers of the run are started anew."""
    max_concurrent: int = Field(128, ge=1)
    """Most completions that one replica is asked for at once."""
    in_flight: bool = False
    """Where rollouts are sampled ahead: completions that are being sampled when new weights arrive go on with them,
    instead of with those they began with. Each says which version sampled which of its tokens. Which does depends on
    time, so that no two runs are equal (ADR 0020)."""
    sync_dir: Path | None = None
    """Folder in which weights are written. With files servers read them there; it must be the same folder for both.
    None takes a temporary one, where all servers are on this machine."""
    transport: Literal["auto", "files", "gloo", "nccl"] = "auto"
    """How a version reaches servers: they read ``files`` of ``sync_dir``, or their workers are sent tensors from
    process to process, over TCP (``gloo``) or between cards (``nccl``). ``auto`` takes files, and gloo where a server
    is on another machine and no ``sync_dir`` is given."""
    bucket_mib: int = Field(512, ge=1)
    """Weights are written, read and sent in buckets of at most so many MiB, or of one weight where that is larger;
    trainer and server copy one at a time."""
    canary_tolerance: float | None = Field(None, gt=0)
    """After each version of the weights the servers' logprobs of eight completions are compared with the trainer's. A
    token may differ by so many nats. None takes 0.001 in float32, 0.3 otherwise, and limits by what the first version
    shows of rounding. An engine whose logprobs do not change stops the run in any case."""
    allow_untested: bool = False
    """Use a version of vLLM that the tests were not run with."""

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        cleaned = tuple(url.rstrip("/") for url in urls)
        for url in cleaned:
            if not url.startswith(("http://", "https://")):
                raise ConfigError(
                    f"rollout.urls: '{url}' is not an address",
                    fix="write it with its protocol and port: http://127.0.0.1:8000",
                )
        if len(set(cleaned)) < len(cleaned):
            raise ConfigError("rollout.urls names a server twice", fix="give each server once")
        return cleaned

    @model_validator(mode="after")
    def _one_source(self) -> VllmConfig:
        if self.urls and self.python:
            raise ConfigError(
                "rollout.urls and rollout.python are both given",
                why="servers are either running already or started by the run",
                fix="leave one of them out",
            )
        return self

    def chosen_transport(self) -> str:
        """``files``, ``gloo`` or ``nccl``."""
        if self.transport != "auto":
            return self.transport
        return "gloo" if self.sync_dir is None and self.far_urls() else "files"

    def far_urls(self) -> list[str]:
        """Addresses of other machines."""
        return [url for url in self.urls if urlsplit(url).hostname not in LOOPBACK]

    def conditions(self) -> Mapping[str, str]:
        """What no two runs have in common."""
        if not self.in_flight:
            return {}
        return {"in_flight": "not exactly reproducible: which weights sample a token depends on time"}

    def memory(self, facts: EngineFacts) -> EngineMemory:
        """What servers of the run hold, and handing weights over, for the memory plan."""
        from rlhf_plugin_vllm.memory import server_memory

        return server_memory(self, facts)

    def memory_changes(self) -> Sequence[tuple[str, str, VllmConfig]]:
        """Settings with which servers of the run hold less: (setting, cost, configuration with it)."""
        from rlhf_plugin_vllm.memory import server_changes

        return server_changes(self)

    @classmethod
    def layouts(cls, asked: CardsAsked) -> Iterator[EngineLayout]:
        """How it would use cards, for ``rlhf memory plan --splits``."""
        from rlhf_plugin_vllm.layouts import server_layouts

        return server_layouts(asked, asked.own if isinstance(asked.own, cls) else cls.model_validate({}))

    def preflight(self, ctx: BuildContext) -> None:
        """Ask the servers what they are, before a model is loaded."""
        from rlhf_plugin_vllm.checks import check_before_loading

        check_before_loading(self, ctx)

"""How vLLM would use a number of cards, for ``rlhf memory plan --splits``; neither torch nor vLLM is imported."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_core.config import ConfigError
from rlhf_plugin_preflight.memory.engine import CardsAsked, EngineLayout
from rlhf_plugin_vllm.cards import VISIBLE
from rlhf_plugin_vllm.memory import GIB, utilization, weights_bytes
from rlhf_plugin_vllm.server import server_command

if TYPE_CHECKING:
    from rlhf_plugin_vllm.colocated_config import ColocatedConfig
    from rlhf_plugin_vllm.config import VllmConfig

SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.3, 0.2, 0.1)
"""Of a card, that are tried for vLLM in the training process."""
TENSOR = ("--tensor-parallel-size", "-tp")
PORT = 8000
MACHINES = "$HOST_"
"""Variables with the names of machines: HOST_0 is the first."""


def colocated_layouts(asked: CardsAsked, own: ColocatedConfig | None) -> Iterator[EngineLayout]:
    """vLLM in the training process of each card; the run's own share of it, or each that is tried."""
    refusal = None
    if asked.ahead:
        refusal = ConfigError(
            "vLLM in the training process cannot sample ahead", fix="--set trainer.rollouts.max_staleness=0, or servers"
        )
    weights = weights_bytes(asked.facts)
    for share in SHARES if own is None else (own.gpu_memory,):
        cache = max(0, int(share * asked.facts.device) - weights)
        settings = ["rollout.name=vllm_colocated", f"rollout.gpu_memory={share}"]
        tokens = cache // asked.facts.token
        yield EngineLayout(asked.cards, settings, 0, 1, weights, cache, tokens, refusal=refusal)


def server_layouts(asked: CardsAsked, own: VllmConfig) -> Iterator[EngineLayout]:
    """Servers on the last cards, in the smallest tensor-parallel sets that hold one sequence; whole machines serve or
    train where there are several."""
    step = asked.per_machine if asked.cards > asked.per_machine else 1
    for train in range(step, asked.cards, step):
        serve = asked.cards - train
        sizes = [n for n in (1 << k for k in range(serve.bit_length())) if _divides(asked, serve, n)]
        holding = (n for n in sizes if _cache(asked, own, n) // asked.facts.token >= asked.facts.context)
        yield _layout(asked, own, train, next(holding, sizes[-1]))


def _divides(asked: CardsAsked, serve: int, size: int) -> bool:
    return size <= asked.per_machine and not (serve % size or asked.heads % size or asked.kv_heads % size)


def _arguments(own: VllmConfig) -> list[str]:
    """The run's own of servers, but for tensor parallel."""
    after = {n + 1 for n, word in enumerate(own.arguments) if word.replace("_", "-") in TENSOR}
    return [
        w for n, w in enumerate(own.arguments) if n not in after and w.partition("=")[0].replace("_", "-") not in TENSOR
    ]


def _cache(asked: CardsAsked, own: VllmConfig, size: int) -> int:
    """Bytes of keys and values that a server of so many cards has room for."""
    share = int(utilization(_arguments(own)) * asked.facts.device)
    return max(0, size * share - weights_bytes(asked.facts))


def _layout(asked: CardsAsked, own: VllmConfig, train: int, size: int) -> EngineLayout:
    cache, weights = _cache(asked, own, size), weights_bytes(asked.facts)
    tokens, engines = cache // asked.facts.token, (asked.cards - train) // size
    refusal = None
    if tokens < asked.facts.context:
        refusal = ConfigError(
            f"a vLLM server on {size} card{'s' * (size > 1)} has room for {tokens} tokens, and the policy takes "
            f"{asked.facts.context}",
            why=f"weights take {weights / GIB:.1f} GiB, keys and values of a token {asked.facts.token / 1024:.0f} KiB",
            fix="more cards that serve, or --set model.max_context=N",
        )
    arguments = _arguments(own) + ([f"--tensor-parallel-size={size}"] if size > 1 else [])
    by_run = asked.cards <= asked.per_machine and not engines % train
    if asked.quantized and not by_run:
        refusal = ConfigError(
            "a base of 4 bits needs servers that the run starts", fix=f"a multiple of {train} servers"
        )
    settings = _of_run(asked, own, train, engines, arguments) if by_run else _by_address(asked, own, train, size)
    start = () if by_run else _start(asked, train, size, arguments)
    each = weights // size
    return EngineLayout(train, settings, engines, size, each, cache // size, tokens, start, refusal)


def _of_run(asked: CardsAsked, own: VllmConfig, train: int, engines: int, arguments: Sequence[str]) -> list[str]:
    """Settings with which the run starts them."""
    cards = ",".join(map(str, range(train, asked.cards)))
    settings = ["rollout.name=vllm", *(["rollout.urls=[]"] if own.urls else [])]
    settings += [f"rollout.python={own.python or '$VLLM_PYTHON'}", f"rollout.replicas={engines // train}"]
    if list(own.arguments) != list(arguments):
        settings.append(f"rollout.arguments={json.dumps(arguments)}")
    return [*settings, f"rollout.environment.{VISIBLE}='{cards}'"]


def _by_address(asked: CardsAsked, own: VllmConfig, train: int, size: int) -> list[str]:
    """Settings with which the run asks servers that were started before."""
    one = asked.cards <= asked.per_machine
    each = (asked.cards - train if one else asked.per_machine) // size
    first, machines = train // asked.per_machine, asked.cards // asked.per_machine
    names = ["127.0.0.1"] if one else [f"{MACHINES}{n}" for n in range(first, machines)]
    urls = ",".join(f"http://{name}:{PORT + k}" for name in names for k in range(each))
    settings = ["rollout.name=vllm", f"rollout.urls=[{urls}]"]
    if own.python:
        settings.append("rollout.python=null")
    return settings if one else [*settings, "rollout.sync_dir=$SHARED/weights"]


def _start(asked: CardsAsked, train: int, size: int, arguments: Sequence[str]) -> list[str]:
    """Lines that start the servers of a machine and wait for them."""
    one = asked.cards <= asked.per_machine
    first, on_machine = (train, asked.cards - train) if one else (0, asked.per_machine)
    servers = on_machine // size
    names = " ".join(map(str, range(servers)))
    cards = ",".join(f"$(({first + k} + {size} * k))" if servers > 1 else str(first + k) for k in range(size))
    lora = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 " if asked.lora_rank else ""
    command = server_command("PYTHON", Path(asked.model), asked.dtype, asked.facts.context, asked.lora_rank, arguments)
    if not one:
        command[command.index("--host") + 1] = "0.0.0.0"  # trainers are on other machines
    words = shlex.join(command[1:])
    variables = f"{VISIBLE}={cards} VLLM_SERVER_DEV_MODE=1 {lora}"
    port = f"$(({PORT} + k))" if servers > 1 else str(PORT)
    command = f'{variables}"$VLLM_PYTHON" {words} --port {port} &'
    wait = f"until curl --silent --fail http://127.0.0.1:{port}/health; do sleep 5; done"
    lines = [command, wait] if servers == 1 else [f"for k in {names}; do {line} done" for line in (command, f"{wait};")]
    return lines if one else ["# on each machine that serves", *lines, "# on each machine that trains"]

"""What vLLM holds in memory, for the memory plan; neither torch nor vLLM is imported."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError
from rlhf_plugin_preflight.cards import cards_here
from rlhf_plugin_preflight.memory.amounts import ranks_here
from rlhf_plugin_preflight.memory.engine import EngineFacts, EngineMemory
from rlhf_plugin_vllm.cards import VISIBLE, card_names, cards_of_servers, option

if TYPE_CHECKING:
    from rlhf_plugin_vllm.colocated_config import ColocatedConfig
    from rlhf_plugin_vllm.config import VllmConfig


MIB, GIB = 1 << 20, 1 << 30
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
"""Of ``--kv-cache-memory-bytes``, as vLLM reads it: small letters are decimal."""
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""Environment variable of vLLM for CPUs: GiB of its cache of keys and values."""
UTILIZATION = 0.92
"""Share of a device's memory that a server takes where ``--gpu-memory-utilization`` does not say."""
SPACES = (16, 8, 4, 2, 1)
"""GiB that are tried as ``VLLM_CPU_KVCACHE_SPACE``."""
SHARES = (0.3, 0.2, 0.1)
"""Of a device, that are tried."""
FEWER = "fewer completions are sampled at once"
OTHER_SIZES = frozenset({"kv-cache-dtype", "quantization", "cpu-offload-gb", "dtype"})
"""Arguments of vLLM with which weights, or keys and values, are of another size than planned: nothing is refused."""


def colocated_memory(config: ColocatedConfig, facts: EngineFacts) -> EngineMemory:
    """Of vLLM in the training process: its share of the card on CUDA, its weights and cache on CPUs."""
    weights = weights_bytes(facts)
    share = int(config.gpu_memory * facts.device)
    fixed = cache_bytes(config.environment, config.arguments.get("kv_cache_memory_bytes"), on_cpu=facts.on_cpu)
    cache = max(0, share - weights) if fixed is None else fixed
    parts = {"engine weights": weights, "engine KV cache": cache}
    syncing = {"weight sync": facts.unit}
    named = {str(name).replace("_", "-") for name in config.arguments}
    refusal = None if named & OTHER_SIZES else _too_small(facts, weights, cache, share if fixed is None else None)
    if facts.on_cpu:
        estimate = fixed is None or facts.lora
        return EngineMemory(
            parts,
            sampling=_sampling(facts),
            syncing=syncing,
            copies_weights=True,
            is_estimate=estimate,
            refusal=refusal,
        )
    asleep = {"engine weights": weights} if facts.lora else {}
    return EngineMemory(
        parts,
        updating={} if config.sleep else None,
        syncing=syncing,
        host=asleep if config.sleep else {},
        copies_weights=True,
        is_estimate=True,
        refusal=refusal,
    )


def weights_bytes(facts: EngineFacts) -> int:
    """Of vLLM's own copy of the model, on CPUs with the packed ones of embedding and head; adapters are an estimate."""
    packed = 2 * facts.head if facts.on_cpu else 0
    return facts.weights + packed + (facts.trained if facts.lora else 0)


def _sampling(facts: EngineFacts) -> dict[str, int]:
    """Logits, what is drawn from and logprobs, in float32."""
    return {"engine activations": 3 * 4 * facts.vocabulary * facts.rows}


def _too_small(facts: EngineFacts, weights: int, cache: int, share: int | None) -> ConfigError | None:
    """Whether no sequence of full length fits the cache, so that vLLM does not start."""
    needed = facts.context * facts.token
    if cache >= needed:
        return None
    room = cache // facts.token
    bound = f"its share of {share / GIB:.2f} GiB" if share is not None else f"{cache / GIB:.2f} GiB"
    least = (weights + needed) / facts.device
    fix = f"--set model.max_context={room}" if room > 0 else "a smaller model, or fewer bytes per weight"
    if share is not None and least < 1:
        rounded_up = min(0.99, (int(least * 100) + 1) / 100)
        fix = f"--set rollout.gpu_memory={rounded_up}" + (f", or {fix}" if room > 0 else "")
    return ConfigError(
        f"vLLM cannot start: its cache holds {room} tokens, and the policy takes {facts.context}",
        why=f"{bound}; weights take {weights / GIB:.2f} GiB, keys and values of a token {facts.token / 1024:.0f} KiB",
        fix=fix,
    )


def cache_bytes(environment: Mapping[str, str], explicit: Any, *, on_cpu: bool) -> int | None:
    """Bytes that the settings give vLLM's cache of keys and values; None where it takes a share of the device."""
    space = environment.get(KV_SPACE, os.environ.get(KV_SPACE, "")) if on_cpu else ""
    if space:
        if not space.isdigit() or int(space) < 1:
            raise ConfigError(
                f"{KV_SPACE}='{space}' is not a whole number of GiB",
                fix=f"--set \"rollout.environment.{KV_SPACE}='4'\"",
            )
        return int(space) * GIB
    if explicit is None:
        return None
    number, unit = str(explicit).strip(), 1.0
    if number[-1:] in UNITS:
        number, unit = number[:-1], UNITS[number[-1]]
    try:
        size = int(float(number) * unit)
    except ValueError:
        size = 0
    if size < 1:
        raise ConfigError(
            f"kv_cache_memory_bytes={explicit} is not a number of bytes", fix=f"{4 * GIB} is 4 GiB, or 4G"
        )
    return size


def colocated_changes(config: ColocatedConfig) -> list[tuple[str, str, Any]]:
    """Settings with which vLLM in the training process holds less, the cheapest first."""
    changes: list[tuple[str, str, Any]] = []
    if not config.sleep:
        slept = config.model_copy(update={"sleep": True})
        changes.append(("rollout.sleep=true", "vLLM gives memory back and takes it anew at every update", slept))
    for share in (s for s in SHARES if s < config.gpu_memory):
        changes.append((f"rollout.gpu_memory={share}", FEWER, config.model_copy(update={"gpu_memory": share})))
    return changes + _spaces(config)


def _spaces(config: Any) -> list[tuple[str, str, Any]]:
    space_set = config.environment.get(KV_SPACE, "")
    smaller = [space for space in SPACES if not space_set.isdigit() or space < int(space_set)]
    return [
        (
            f"\"rollout.environment.{KV_SPACE}='{space}'\"",
            FEWER,
            config.model_copy(update={"environment": {**config.environment, KV_SPACE: str(space)}}),
        )
        for space in smaller
    ]


def server_memory(config: VllmConfig, facts: EngineFacts) -> EngineMemory:
    """Of servers that the run starts, not those by address; a version costs the file being written, the weights
    gathered for it, a bucket for each server that is sent it, then the one unit that the canary holds."""
    written = min(max(config.bucket_mib * MIB, facts.largest), facts.trained)
    transport, sent = config.chosen_transport(), written * (len(config.urls) or config.replicas)
    held = max(2 * written, sent if transport == "gloo" else 0)
    on_card = max(facts.unit, sent if transport == "nccl" else 0)
    syncing = {"weight sync": max(held, facts.unit) if facts.on_cpu else on_card}
    host = {} if facts.on_cpu else {"weight sync": held}
    if config.urls:
        return EngineMemory({}, syncing=syncing, host=host, from_shards=True)
    share = utilization(config.arguments)
    fixed = cache_bytes(config.environment, option(config.arguments, "--kv-cache-memory-bytes"), on_cpu=facts.on_cpu)
    each = weights_bytes(facts) + fixed if fixed is not None else int(share * facts.device)
    if facts.on_cpu:
        parts = {"engine servers": config.replicas * each}
        cache = each - weights_bytes(facts) if fixed is None else fixed
        other = any(option(config.arguments, f"--{name}") is not None for name in OTHER_SIZES)
        refusal = None if other else _too_small(facts, weights_bytes(facts), cache, None)
        return EngineMemory(parts, syncing=syncing, is_estimate=True, from_shards=True, refusal=refusal)
    return replace(_on_cards(config, facts, each, host), syncing=syncing, from_shards=True)


def _on_cards(config: VllmConfig, facts: EngineFacts, each: int, host: Mapping[str, int]) -> EngineMemory:
    """Servers on GPUs: those of this machine's ranks, beside a rank where they are on that rank's card."""
    ranks = ranks_here(facts.ranks)
    servers, cards = config.replicas * ranks, max(ranks, cards_here())
    named = config.environment.get(VISIBLE, "")
    held = cards_of_servers(named, config.arguments, servers, ranks, cards)
    count = Counter(card for server in held for card in server)
    card, most = count.most_common(1)[0]
    refusal = None
    if most * each > facts.device:
        refusal = ConfigError(
            f"{most} vLLM servers of {each / GIB:.2f} GiB do not fit card {card}",
            why=f"it has {facts.device / GIB:.2f} GiB, and {servers} servers share {len(count)} cards",
            fix="--set 'rollout.arguments=[\"--gpu-memory-utilization=" + f"{int(90 / most) / 100}" + "\"]', or "
            f"more cards in rollout.environment.{VISIBLE}",
        )
    of_ranks = (card_names(os.environ.get(VISIBLE, "")) or [str(n) for n in range(cards)])[:ranks]
    beside = max((number for card, number in count.items() if card in of_ranks), default=0)
    by_card = {f"card {card}": number * each for card, number in count.items() if card not in of_ranks}
    parts = {"engine servers": beside * each} if beside else {}
    return EngineMemory(parts, host=host, elsewhere=by_card, is_estimate=True, refusal=refusal)


def server_changes(config: VllmConfig) -> list[tuple[str, str, Any]]:
    """Settings with which servers of the run hold less, the cheapest first."""
    if config.urls:
        return []
    changes = _spaces(config)
    if config.replicas > 1:
        changes.append(("rollout.replicas=1", "slower sampling", config.model_copy(update={"replicas": 1})))
    others = tuple(a for a in config.arguments if not a.replace("_", "-").startswith("--gpu-memory-utilization="))
    for share in (s for s in SHARES if s < utilization(config.arguments)):
        arguments = (*others, f"--gpu-memory-utilization={share}")
        text = ",".join(f'"{argument}"' for argument in arguments)
        changes.append((f"'rollout.arguments=[{text}]'", FEWER, config.model_copy(update={"arguments": arguments})))
    return changes


def utilization(arguments: Sequence[str]) -> float:
    """Share of a device's memory that a server may take."""
    value = option(arguments, "--gpu-memory-utilization")
    if value is None:
        return UTILIZATION
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(
            f"rollout.arguments: --gpu-memory-utilization={value} is not a share of a device's memory",
            fix="more than 0 and at most 1",
        )
    return share

"""Sequence or tensor parallel against one process, on as many ranks as torchrun starts; rank 0 writes what it found.

Losses, norms, reference logprobs and weights of three updates; what a decoder layer is given; the same with attention
that exchanges nothing; what a rank has of each divided weight.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.reference import Reference
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.forward_check import probe_on_shards
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import NoGradForward, by_tokens, micro_batches_of_size
from rlhf_core.training.optimizer import prepare_to_learn
from rlhf_core.training.policy_module import PolicyModule, ReferencePolicy
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_plugin_dpo.items import PairItem, Side
from rlhf_plugin_dpo.loss_config import SigmoidConfig
from rlhf_plugin_dpo.pair_loss import PairLoss
from rlhf_plugin_dpo.pair_module import PairModule
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_fsdp.strategy import Fsdp
from rlhf_plugin_fsdp.ulysses import SequenceGroup
from rlhf_plugin_grpo.loss import GrpoClip
from rlhf_plugin_sft.loss import CrossEntropy

sys.path.insert(0, str(Path(__file__).parent))

from matrix import items

CONFIG = OnlineTrainerConfig(name="t", optimizer={"eps": 1e-3, "learning_rate": 1e-3, "weight_decay": 0.1})  # pyright: ignore
UPDATES = 3


def samples_of(kind: str) -> list[Any]:
    """Seven of them; of two prompts some tokens of the completions are not learned."""
    rows = items(200)
    if kind != "dpo":
        for row in rows[1::3]:
            row.mask_T[::2] = len(row.mask_T) == 1
        return rows
    sides = [Side(r.prompt_ids, r.completion_ids, len(r.completion_ids), ref=-3.0) for r in rows]
    return [PairItem(f"p{n}", side, sides[(n + 1) % 7]) for n, side in enumerate(sides)]


def measured(module: Any, micro: Sequence[Any]) -> list[Any]:
    """Logprobs and entropies of completions, or summed logprobs of pairs' sides."""
    if isinstance(module, PairModule):
        return module.side_sums([item.chosen for item in micro])
    return [np.concatenate(row[:2]) for row in module.measure(micro, {"logprobs", "entropy"})]


def numbers(strategy: Any, path: str, case: str, share: list[Any]) -> dict[str, Any]:
    """What a run of this kind is over three updates; one process keeps all activations."""
    kind, *options = case.split(", ")
    lora = LoraSettings(r=4) if "lora" in options else None
    torch.manual_seed(3)
    checkpointing = "selective" if "selective" in options else "checkpointing" in options
    kept = checkpointing if isinstance(strategy, Fsdp) else False
    config = ModelConfig(path=path, lora=lora, gradient_checkpointing=kept)
    loaded = load_policy(config, weights=not isinstance(strategy, Fsdp))
    again = {type(part).__name__ for part in loaded.model.modules() if hasattr(part, "_again")}
    assert any(name.endswith("MLP") for name in again) is (kept == "selective"), again
    reference = Reference.of(loaded.model)
    module: Any = PairModule(loaded.model) if kind == "dpo" else PolicyModule(loaded.model, 0.8)
    loss = {"sft": CrossEntropy(), "dpo": PairLoss(SigmoidConfig()), "grpo": GrpoClip(0.2, 0.2)}[kind]
    prepared, optimizer = prepare_to_learn(strategy, module, CONFIG.optimizer)
    cut: Any = micro_batches_of_size(2)
    if "by tokens" in options:
        cut = lambda rows: by_tokens(rows, 40, module.options, 32)  # noqa: E731
    learner = Learner(prepared, loss, strategy, CONFIG, 10, micro_batcher=cut, optimizer=optimizer)
    found: dict[str, Any] = {"losses": [], "norms": [], "before": dict(strategy.full_state(prepared))}
    found["before"] = {k: v.clone() for k, v in found["before"].items()}
    if kind == "grpo":
        frozen = ReferencePolicy(reference, loaded.model, prepared, strategy, 0)
        found["reference"] = frozen.logprobs(share, module, cut)
    for _ in range(UPDATES):
        metrics = learner.update(share)
        found["losses"].append(metrics["loss"])
        found["norms"].append(metrics["grad_norm"])
    found["losses"].append(learner.measure(share)["loss"])
    found["measured"] = NoGradForward(strategy, prepared).rows(share, cut, measured)
    found["after"] = strategy.full_state(prepared)
    return found


def far(ranks: AcceleratedStrategy, path: str, case: str, **size: int) -> dict[str, float]:
    """Distance from one process; the first rank has five of seven samples, the last the others."""
    samples = samples_of(case.split(", ")[0])
    want = numbers(LocalStrategy(), path, case, samples)
    last = ranks.rank == ranks.world_size - 1
    share = samples[:5] if ranks.rank == 0 else samples[5:] if last else []
    got = numbers(Fsdp(FsdpConfig(device="cpu", **size), ranks), path, case, share)  # pyright: ignore
    found = {k: max(abs(a - b) for a, b in zip(want[k], got[k], strict=True)) for k in ("losses", "norms")}
    for key in ("reference", "measured") if "reference" in want else ("measured",):
        rows = [row for rank in ranks.gather_objects(got[key]) for row in rank]
        found[key] = max(float(np.abs(np.subtract(a, b)).max()) for a, b in zip(want[key], rows, strict=True))
    if ranks.rank == 0:
        assert want["after"].keys() == got["after"].keys()
        found["after"] = max(float((want["after"][k] - v).abs().max()) for k, v in got["after"].items())
        found["moved"] = max(float((want["after"][k] - v).abs().max()) for k, v in want["before"].items())
    return found


def lengths(ranks: AcceleratedStrategy, path: str, size: int) -> dict[str, list[int]]:
    """:func:`held` in one process and on each rank; the sequence is one rank's."""
    divided = Fsdp(FsdpConfig(device="cpu", sequence_parallel=size), ranks)
    of_ranks = ranks.gather_objects(held(divided, path, ranks.rank == 0))
    return {"one": held(LocalStrategy(), path, True), **{f"rank {n}": row for n, row in enumerate(of_ranks)}}


def held(strategy: Any, path: str, owner: bool) -> list[int]:
    """Most tokens that a layer is given, and bytes that the graph of an update keeps beside weights."""
    ids = tuple(range(6, 166))
    row = TrainingSample("long", ids[:40], ids[40:], np.ones(120, bool), np.ones(120, np.float32))
    loaded = load_policy(ModelConfig(path=path))
    shapes = {s for p in loaded.model.parameters() for s in (p.shape, p.shape[::-1])}
    seen: list[int] = []
    for layer in loaded.model.model.layers:
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    prepared, optimizer = prepare_to_learn(strategy, PolicyModule(loaded.model), CONFIG.optimizer)
    learner = Learner(prepared, CrossEntropy(), strategy, CONFIG, 10, optimizer=optimizer)
    learner.update([row] if owner else [])  # what a model allows has been tried
    seen.clear()
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.shape not in shapes:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.update([row] if owner else [])
    return [max(seen), sum(kept.values())]


def parts(ranks: AcceleratedStrategy, path: str, size: int) -> dict[str, Any]:
    """By linear layer the shares of its weight and of its output's width that each rank has in an update; how far
    what is not divided is then from the neighbour's; the shares where weights are gathered, and how far logits of a
    forward of each rank's own are from theirs."""
    strategy = Fsdp(FsdpConfig(device="cpu", tensor_parallel=size), ranks)
    loaded = load_policy(ModelConfig(path=path), weights=False)
    seen: dict[str, tuple[float, float]] = {}

    def note(name: str, layer: Any, out: torch.Tensor) -> None:
        held = layer.weight.to_local() if isinstance(layer.weight, DTensor) else layer.weight
        seen[name] = held.numel() / layer.in_features / layer.out_features, out.shape[-1] / layer.out_features

    prepared, optimizer = prepare_to_learn(strategy, PolicyModule(loaded.model), CONFIG.optimizer)
    for name, layer in loaded.model.model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda layer, _, out, name=name: note(name, layer, out))
    learner, rows = Learner(prepared, CrossEntropy(), strategy, CONFIG, 10, optimizer=optimizer), samples_of("sft")
    learner.update(rows[:3] if ranks.rank == 0 else rows[3:])
    found: dict[str, Any] = {"shares": ranks.gather_objects(dict(seen))}
    of_rank = [p.to_local() for p in prepared.parameters() if p.device_mesh.ndim == 1]  # pyright: ignore
    every = ranks.gather_objects(of_rank)
    found["apart"] = max(
        float((a - b).abs().max()) for a, b in zip(every[0], every[1], strict=True) if a.numel() and b.numel()
    )
    ids = torch.arange(9 + ranks.rank)[None]
    alone = probe_on_shards(strategy, prepared, lambda module: module.model(ids).logits)
    seen.clear()
    with strategy.gathered(prepared), torch.no_grad():  # as sampling does: the ranks make as many forwards as they like
        whole = [loaded.model(ids).logits for _ in range(1 + ranks.rank)][-1]
    return {**found, "gathered": dict(seen), "alone": ranks.gather_objects(float((alone - whole).abs().max()))}


def main(out: str, models: str, divided: str, *cases: str) -> None:
    name, size = divided.split("=")
    ranks = AcceleratedStrategy(int(os.environ["WORLD_SIZE"]), "cpu", 200)
    found: dict[str, Any] = {}
    for case in cases:
        family, _, kind = case.partition(": ")
        path = str(Path(models) / family)
        if kind == "lengths":
            found[case] = lengths(ranks, path, int(size))
        elif kind == "parts":
            found[case] = parts(ranks, path, int(size))
        elif kind.startswith("without exchange, "):
            with patch.object(SequenceGroup, "by_heads", alone), patch.object(SequenceGroup, "by_tokens", kept_apart):
                found[case] = far(ranks, path, kind.partition(", ")[2], **{name: int(size)})
        else:
            found[case] = far(ranks, path, kind, **{name: int(size)})
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(found, indent=1))
    ranks.close()


def alone(group: SequenceGroup, states: torch.Tensor) -> torch.Tensor:
    """A row of this rank's slice alone, as often as there are ranks, in place of everybody's slices."""
    heads = states.repeat_interleave(max(1, group.size // states.shape[1]), dim=1).chunk(group.size, dim=1)
    return heads[group.member].repeat(1, 1, group.size, 1)


def kept_apart(group: SequenceGroup, attended: torch.Tensor) -> torch.Tensor:
    """This rank's slice of its own heads, in place of all heads."""
    return attended.chunk(group.size, dim=1)[group.member].repeat(1, 1, group.size, 1)


if __name__ == "__main__":
    main(*sys.argv[1:])

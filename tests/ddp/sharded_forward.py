"""Forwards without gradient on shards: run by torchrun, every rank writes how far its numbers are from whole weights'.

The strategy shards every decoder layer by itself, the rest with the module, and refuses to gather weights.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures" / "acme_sharded"))

from acme_sharded import Sharded

from rlhf_core.distributed.group import LocalStrategy, RankZero
from rlhf_core.distributed.whole_weights import gather_weights
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.layers.trunk_and_head import trunk_and_head
from rlhf_core.models.load import load_policy
from rlhf_core.models.reference import FILE, Reference
from rlhf_core.rl.advantages import AdvantageStep
from rlhf_core.rl.checkpoint import PolicyWeights
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.rl.update import UpdateStep
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import micro_batches_of_size
from rlhf_core.training.policy_module import LOGPROBS, PolicyMicroBatcher, PolicyModule, ReferencePolicy
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_core.training.weight_sync import DriftCheck
from rlhf_plugin_dpo.items import Side
from rlhf_plugin_dpo.pair_module import PairModule
from rlhf_plugin_grpo.loss import GrpoClip
from rlhf_plugin_ppo.config import CriticSettings
from rlhf_plugin_ppo.critic import make_critic

try:
    from .matrix import items
except ImportError:
    from matrix import items

SIZE = 2
"""Samples of a micro-batch."""


class LayerSharded(Sharded):
    """FSDP2 over decoder layers; counts forwards of the modules that it prepared."""

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        self.calls: Counter[int] = Counter()

    def prepare(self, module: torch.nn.Module) -> torch.nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (self.world_size,))
        trunks = [trunk_and_head(module.model).trunk, getattr(getattr(module, "critic", None), "trunk", None)]
        for trunk in trunks:
            for layer in () if trunk is None else trunk.layers:
                fully_shard(layer, mesh=mesh)
        module.register_forward_pre_hook(lambda m, _: self.calls.update([id(m)]))
        return fully_shard(module, mesh=mesh)  # pyright: ignore[reportReturnType]

    def prepare_frozen(self, module: torch.nn.Module) -> torch.nn.Module:
        return self.prepare(module)

    def gathered(self, module: Any) -> Any:
        raise AssertionError("the weights were gathered")

    @contextlib.contextmanager
    def sharded_forward(self, module: Any) -> Iterator[torch.nn.Module]:
        yield module
        module.reshard()


def parts(strategy: Any, critic_kind: str, config: OnlineTrainerConfig) -> dict[str, Any]:
    """The parts of a run that make forwards without gradient, as ``build_online`` puts them together."""
    loaded = load_policy(ModelConfig(path="pocket"))
    reference = Reference.of(loaded.model)
    module = PolicyModule(loaded.model, 0.8)
    module.critic = make_critic(CriticSettings(kind=critic_kind), SimpleNamespace(policy=loaded))  # pyright: ignore
    module.on_policy_trunk = critic_kind == "shared"
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        module.critic.weight_H.copy_(torch.randn(module.critic.weight_H.shape, generator=generator) * 0.1)
        for parameter in reference.model.parameters():
            parameter.mul_(0.97)
    weights = PolicyWeights(loaded, module.critic, reference)
    prepared = strategy.prepare(module)
    learner = Learner(prepared, GrpoClip(0.2, 0.2), strategy, config, 10)
    policy = ReferencePolicy(reference, loaded.model, prepared, strategy, sync_every=1)
    cut, session = PolicyMicroBatcher(module, SIZE, None, 64), SimpleNamespace(counts=Counter[str]())
    unused: Any = None
    step = AdvantageStep(unused, policy, module, cut, learner.no_grad, RankZero(strategy), config)
    update = UpdateStep(learner, module, cut, strategy, config, session, 0, DriftCheck("off", session.counts))  # type: ignore
    return {"reference": policy, "learner": learner, "step": step, "update": update, "weights": weights}


def pair_sums(strategy: Any, samples: Sequence[TrainingSample]) -> tuple[list[float], list[float]]:
    """Summed logprobs of a pair module's policy, and of another module's model inside of its call."""
    module = PairModule(load_policy(ModelConfig(path="pocket")).model)
    no_grad = Learner(strategy.prepare(module), lambda b: b, strategy, OnlineTrainerConfig(name="t"), 1).no_grad
    sides = [Side(s.prompt_ids, s.completion_ids, len(s.completion_ids)) for s in samples]

    def inner(outer: Any, micro: Sequence[TrainingSample]) -> list[float]:
        return [float(row.sum()) for row, *_ in PolicyModule(outer.model).measure(micro, LOGPROBS)]

    sums = no_grad.rows(sides, micro_batches_of_size(SIZE), lambda m, micro: m.side_sums(micro))
    return sums, no_grad.rows(samples, micro_batches_of_size(SIZE), inner)


def numbers(strategy: Any, critic_kind: str, samples: Sequence[TrainingSample]) -> dict[str, list[Any]]:
    """What is measured, before and after one update and a sync of the reference."""
    config = OnlineTrainerConfig(
        name="t", rollout_batch_size=8, epochs_per_rollout_batch=2, entropy_quantile=0.5, optimizer={"eps": 1e-3}
    )
    made = parts(strategy, critic_kind, config)
    found: dict[str, list[Any]] = {}
    for when in ("before", "after"):
        forward = made["step"].reference_and_values(samples)
        groups, _ = made["update"]._measure([[s] for s in samples])
        found[f"{when}/reference"] = list(forward.references)
        found[f"{when}/values"] = [v.values_T1 for v in forward.values]
        found[f"{when}/old"] = [s.old_T for group in groups for s in group]
        found[f"{when}/loss"] = [np.array([made["learner"].measure(samples)["loss"]])]
        if when == "before":
            made["learner"].update(samples)
            made["reference"].sync(1)
    pairs, inner = pair_sums(strategy, samples)
    found["pairs"], found["inner"] = [np.array(pairs)], [np.array(inner)]
    with tempfile.TemporaryDirectory() as folder:  # whole weights of the synced reference, which rank 0 writes
        for part, write in made["weights"].beside:
            gather_weights(strategy, part, partial(write, Path(folder)))
        if strategy.rank == 0:
            saved = load_file(str(Path(folder) / FILE))
            found["saved"] = [saved[k].double().numpy() for k in sorted(saved)]
    return found


def main(out: str) -> None:
    """Compare shards of five and two samples, and of seven and none, with one process."""
    strategy = LayerSharded(int(os.environ["WORLD_SIZE"]))
    rows, far = items(), {}
    for kind, first in (("shared", 5), ("separate", 7)):
        want = numbers(LocalStrategy(), kind, rows)
        got = numbers(strategy, kind, rows[:first] if strategy.rank == 0 else rows[first:])
        for name, local in got.items():  # rank 0 alone has what is saved, last of all
            every = local if name == "saved" or name.endswith("loss") else None
            flat = every or [row for rank in strategy.gather_objects(local) for row in rank]
            one, two = (np.concatenate([np.ravel(r) for r in x]) for x in (want[name], flat))
            far[f"{kind}/{name}"] = float(np.abs(one - two).max())
        moved = [float(np.abs(a - b).max()) for a, b in zip(want["before/reference"], want["after/reference"])]
        far[f"{kind}/moved"] = max(moved)
    counts = strategy.gather_objects(sorted(strategy.calls.values()))
    if strategy.rank == 0:
        Path(out).write_text(json.dumps({"far": far, "calls": counts}))
    strategy.close()


if __name__ == "__main__":
    main(sys.argv[1])

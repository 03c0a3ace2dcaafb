"""Conformance in what a strategy may have besides, on any number of ranks: all make the same calls."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from rlhf_core.config import ComponentConfig, RlhfError
from rlhf_core.distributed import OptimizerPlan
from rlhf_core.distributed.optimizer import prepare_training
from rlhf_core.models.slices import remember, stored_in
from rlhf_core.plugins.strategy_protocols import (
    GroupFactory,
    OptimizerGroup,
    RankZeroSections,
    ShardedForward,
    ShardedLoading,
)
from rlhf_core.training import OptimizerSettings
from rlhf_testing.report import require

INPUTS_N3 = torch.linspace(-1.0, 2.0, 21).view(7, 3)
FAR = 1e-5
Weights = dict[str, torch.Tensor]


class Layer(torch.nn.Module):
    """Of a decoder: what a strategy shards by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, hidden_N4: torch.Tensor) -> torch.Tensor:
        return hidden_N4 + torch.tanh(self.linear(hidden_N4))


class Decoder(torch.nn.Module):
    """Two layers between what stays with the root; ``[N, 3] -> [N, 1]``."""

    _no_split_modules = ("Layer",)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        self.layers = torch.nn.ModuleList([Layer(), Layer()])

    def forward(self, rows_N3: torch.Tensor) -> torch.Tensor:
        hidden_N4 = self.first(rows_N3)
        for layer in self.layers:
            hidden_N4 = layer(hidden_N4)
        return self.head(hidden_N4)


class PolicyAndCritic(torch.nn.Module):
    """A policy and a critic, the same every time; returns ``[N, 1]`` of rows ``[N, 3]``."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.critic = Decoder(), Decoder()
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                if not parameter.is_meta:
                    parameter.copy_(torch.randn(parameter.shape, generator=random) / 2)

    def forward(self, rows_N3: torch.Tensor) -> torch.Tensor:
        return self.policy(rows_N3).square() + 3 * self.critic(rows_N3).square()


def plan() -> OptimizerPlan:
    """Matrices decay, and the critic has a rate of its own."""
    names = [name for name, _ in PolicyAndCritic().named_parameters()]
    groups = [
        OptimizerGroup(
            tuple(n for n in names if n.startswith(part) and n.endswith(kind)), rate, decay, part == "critic"
        )
        for part, rate in (("policy", 0.01), ("critic", 0.03))
        for kind, decay in (("weight", 0.1), ("bias", 0.0))
    ]
    return OptimizerPlan(tuple(groups), OptimizerSettings(betas=(0.9, 0.999), eps=1e-3).make)


def weights_on_every_rank(strategy: Any, prepared: torch.nn.Module) -> Weights:
    """Copies of whole weights, on the CPU."""
    with strategy.gathered(prepared):
        module = strategy.unwrap(prepared)
        return {name: p.detach().cpu().clone() for name, p in module.named_parameters()}


def gap(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Largest difference, relative to the larger of 1 and the value; infinite where names or shapes differ."""
    if {n: t.shape for n, t in one.items()} != {n: t.shape for n, t in other.items()}:
        return float("inf")
    rows = [((one[n] - t).abs() / t.abs().clamp(min=1)).max() for n, t in other.items()]
    return float(torch.stack(rows).nan_to_num(nan=float("inf")).max())


@torch.no_grad()
def check_forwards(config: ComponentConfig, strategy: Any, prepared: torch.nn.Module) -> None:
    """Forwards without gradient are those of the whole weights, in ``gathered`` and ``sharded_forward``."""
    plain = PolicyAndCritic()
    plain.load_state_dict(weights_on_every_rank(strategy, prepared))
    rows_N3 = INPUTS_N3.roll(strategy.rank, 0)
    wanted_N1 = plain(rows_N3)
    with strategy.gathered(prepared):
        for _ in range(1 + strategy.rank):
            _same(config, "a forward in gathered()", strategy.unwrap(prepared)(rows_N3.to(strategy.device)), wanted_N1)
    if not issubclass(type(strategy), ShardedForward):
        return
    frozen = strategy.prepare_frozen(PolicyAndCritic().requires_grad_(False))
    for what, module, expected_N1 in (
        ("a forward in sharded_forward()", prepared, wanted_N1),
        ("a forward in sharded_forward() of what prepare_frozen() made", frozen, PolicyAndCritic()(rows_N3)),
    ):
        with strategy.sharded_forward(module) as called:
            for _ in range(2):
                _same(config, what, called(rows_N3.to(strategy.device)), expected_N1)


def _same(config: ComponentConfig, what: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    far = float((got.detach().cpu() - wanted).abs().max())
    require(far < FAR, config, f"{what} equals one of the whole weights", f"apart by {far:.1g}")


def check_loading(config: ComponentConfig, strategy: Any) -> None:
    """A module without memory, whose weights are read once it is prepared."""
    protocol: type = ShardedLoading
    if not isinstance(strategy, protocol):
        return
    from safetensors.torch import save_file

    weights = {name: p.detach() for name, p in PolicyAndCritic().named_parameters()}
    with torch.device("meta"):
        module = PolicyAndCritic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        save_file(weights, file)
        remember(module, stored_in([file]))
        prepared, _ = prepare_training(strategy, module, plan())
    rule = "a module on the meta device has, once it is prepared and read, the weights of its files"
    require(isinstance(strategy.weights_device, torch.device), config, "weights_device is a torch.device", "it is not")
    meta = [name for name, p in strategy.unwrap(prepared).named_parameters() if p.is_meta]
    require(not meta, config, rule, f"still without memory: {meta}")
    far = gap(weights_on_every_rank(strategy, prepared), weights)
    require(far == 0, config, rule, f"apart by {far:.1g}", "prepare() may call nothing that needs values")


def check_group(config: ComponentConfig, strategy: Any) -> None:
    """Collectives of a second thread never meet those of the first."""
    if not issubclass(type(strategy), GroupFactory):
        return
    group, answers = strategy.new_group(60.0), list[Any]()
    ranks = range(strategy.world_size)

    def second() -> None:
        for n in range(8):
            answers.append((group.gather_objects(("second", group.rank, n)), group.sum_over_ranks([1.0, n])))

    thread = threading.Thread(target=second, daemon=True)
    thread.start()
    own = [strategy.gather_objects(("first", strategy.rank, n)) for n in range(8)]
    thread.join(90)
    wanted = [([("second", r, n) for r in ranks], [float(len(ranks)), n * float(len(ranks))]) for n in range(8)]
    rule = "new_group() makes collectives of the same ranks that never meet those of another thread"
    require(answers == wanted, config, rule, f"a second thread got {answers!r:.200}")
    first = own == [[("first", r, n) for r in ranks] for n in range(8)]
    require(first, config, rule, f"the first thread got {own!r:.200}")


class _Unlike(Exception):
    """Raised by rank 0, alone at work."""


def check_lone_work(config: ComponentConfig, strategy: Any, folder: Path) -> None:
    """The others wait for rank 0, and hear of its error; ``folder`` is one that all ranks see."""
    if not issubclass(type(strategy), RankZeroSections):
        return
    done = folder / "done alone"
    with strategy.alone("the conformance kit"):
        if strategy.rank == 0:
            threading.Event().wait(0.3)
            done.touch()
    require(done.is_file(), config, "after alone() rank 0 has done its work", f"rank {strategy.rank} did not wait")
    strategy.barrier("the conformance kit")
    error: BaseException | None = None
    try:
        with strategy.alone("the conformance kit"):
            if strategy.rank == 0:
                raise _Unlike("rank 0 fails")
    except (_Unlike, RlhfError) as caught:
        error = caught
    came = isinstance(error, _Unlike) if strategy.rank == 0 else isinstance(error, RlhfError)
    require(came, config, "an error of rank 0 inside of alone() comes out on every rank", f"{error!r} came out")
    with suppress(FileNotFoundError):
        done.unlink()

"""Conformance of optimizers."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch

from rlhf_core.distributed import LocalStrategy, NormPart
from rlhf_core.training import OptimizerSettings
from rlhf_core.training.optimizer import prepare_to_learn
from rlhf_core.types.tree import load_tree, save_tree
from rlhf_testing.config import check_config
from rlhf_testing.report import require

RATE = 1e-2


class Network(torch.nn.Module):
    """An embedding, a hidden matrix, a bias and a head, the same every time."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden = torch.nn.Embedding(9, 64), torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 3, bias=False)
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=random) / 8)

    def forward(self, seed: int) -> torch.Tensor:
        """A loss."""
        ids_N = torch.randint(0, 9, (32,), generator=torch.Generator().manual_seed(seed))
        return self.head(torch.tanh(self.hidden(self.embedding(ids_N)))).square().mean() + self.hidden.bias.sum()


class Training:
    """A network and its optimizer."""

    def __init__(self, config: OptimizerSettings, network: torch.nn.Module | None = None) -> None:
        self.network = network or Network()
        settings = config.model_copy(update={"learning_rate": RATE, "weight_decay": 0.1})
        self.made: Any = prepare_to_learn(LocalStrategy(), self.network, settings)[1]

    def steps(self, first: int, last: int, factor: float = 1.0) -> dict[str, torch.Tensor]:
        """Steps ``first`` to ``last``; returns copies of the weights."""
        for step in range(first, last + 1):
            self.network(step).backward()
            self.made.set_rates(factor, factor)
            self.made.step([NormPart("grad_norm", self.network)], 1.0)
        return {name: weight.detach().clone() for name, weight in self.network.named_parameters()}


def check_optimizer(config: OptimizerSettings) -> None:
    """Check an optimizer: every weight moves, by the learning rate that is set; a weight without a gradient stays; a
    run goes on from its saved state bit for bit; if ``cuts`` is ``elements``, parts of a weight move as the whole does.
    """
    check_config(config, "optimizer")
    start = {name: weight.detach().clone() for name, weight in Network().named_parameters()}
    moved = Training(config).steps(1, 2)
    still = [n for n, w in moved.items() if torch.equal(w, start[n]) or not torch.isfinite(w).all()]
    require(not still, config, "two steps move every weight", f"{', '.join(still)} did not move, or is not finite")
    hardly = Training(config).steps(1, 2, 1e-6)
    far = max(float((hardly[n] - start[n]).abs().max() / (moved[n] - start[n]).abs().max()) for n in start)
    require(far < 1e-2, config, "a step goes by group['lr']", f"a millionth of the rate moved {far:.1g} as far")
    idle = Training(config)
    idle.made.inner.step()
    same = all(torch.equal(w, start[n]) for n, w in idle.network.named_parameters())
    require(same, config, "weights without a gradient stay as they are", "they moved", "leave out p.grad is None")
    _check_resume(config)
    if config.cuts == "elements":
        _check_elements(config)


def _check_resume(config: OptimizerSettings) -> None:
    whole = Training(config)
    whole.steps(1, 3)
    network = copy.deepcopy(whole.network)
    with tempfile.TemporaryDirectory() as folder:
        save_tree(Path(folder), "optimizer", whole.made.state_dict())
        again = Training(config, network)
        again.made.load_state_dict(load_tree(Path(folder), "optimizer"))
    one, other = whole.steps(4, 6), again.steps(4, 6)
    far = max(float((one[n] - other[n]).abs().max()) for n in one)
    fix = "keep all that a step needs in self.state and self.param_groups"
    require(far == 0, config, "a run goes on from its saved state bit for bit", f"apart by {far:.1g}", fix)


def _check_elements(config: OptimizerSettings) -> None:
    torch.manual_seed(0)
    weight, gradients = torch.randn(4, 6), torch.randn(3, 4, 6)

    def stepped(cut: Any) -> torch.Tensor:
        parts = [torch.nn.Parameter(part.clone()) for part in cut(weight)]
        optimizer = config.make([{"params": parts, "lr": RATE, "weight_decay": 0.1, "part": "matrix"}])
        for gradient in gradients:
            for part, of_part in zip(parts, cut(gradient), strict=True):
                part.grad = of_part.clone()
            optimizer.step()
        return torch.cat([part.detach().reshape(-1) for part in parts])

    far = float((stepped(lambda w: [w]) - stepped(lambda w: w.reshape(-1).split([7, 17]))).abs().max())
    rule, fix = "cuts 'elements': each element's update depends on no other", "cuts: ClassVar[str] = 'none'"
    require(far < 1e-6, config, rule, f"parts of a weight moved otherwise than the whole, by {far:.1g}", fix)

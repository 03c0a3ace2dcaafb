"""What one of several ranks does for :func:`rlhf_testing.check_strategy_on_ranks`, in a process of its own."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from rlhf_core.config import ComponentConfig
from rlhf_core.distributed import LocalStrategy
from rlhf_core.distributed.checked import checked_strategy
from rlhf_core.plugins.strategy_protocols import ModuleRelease, OptimizerOwner, TensorGathering
from rlhf_core.runs.launch.process_end import die_with_parent
from rlhf_testing.report import require
from rlhf_testing.samples import make_context
from rlhf_testing.strategy import check_look_ups, check_release
from rlhf_testing.strategy_optimizer import Training
from rlhf_testing.strategy_parts import (
    FAR,
    INPUTS_N3,
    PolicyAndCritic,
    check_forwards,
    check_group,
    check_loading,
    check_lone_work,
    gap,
)

GONE_S = 60.0


def shares(world_size: int) -> dict[str, list[list[int]]]:
    """Rows of each rank, of one rank more than of the others, and of one rank none."""
    rows = range(len(INPUTS_N3))
    return {
        "uneven shares": [[n for n in rows if min(n // 5, world_size - 1) == rank] for rank in range(world_size)],
        "a rank without items": [[n for n in rows if n % (world_size - 1) == rank] for rank in range(world_size)],
    }


def check_exchanges(config: ComponentConfig, strategy: Any) -> None:
    """Values of several ranks, in rank order."""
    rank, ranks = strategy.rank, range(strategy.world_size)
    strategy.barrier("the conformance kit")
    rows = {
        "sum_over_ranks([rank + 1, 0.5])": (
            strategy.sum_over_ranks([rank + 1, 0.5]),
            [float(sum(r + 1 for r in ranks)), 0.5 * len(ranks)],
        ),
        "max_over_ranks(10 - rank)": (strategy.max_over_ranks(10 - rank), 10),
        "gather_objects({'rank': rank})": (strategy.gather_objects({"rank": rank}), [{"rank": r} for r in ranks]),
        "exchange_objects([(rank, to), ...])": (
            strategy.exchange_objects([(rank, to) for to in ranks]),
            [(r, rank) for r in ranks],
        ),
    }
    for call, (answer, wanted) in rows.items():
        require(answer == wanted, config, f"{call} is {wanted} on rank {rank}", f"{answer!r}", "rank order, all ranks")


def check_gradients(config: ComponentConfig, strategy: Any, shared: str, rows: list[int]) -> None:
    """Against one process with all rows; then clipped by the norm over all ranks."""
    own, plain = Training(strategy, PolicyAndCritic()), Training(LocalStrategy(), PolicyAndCritic())
    own.backward(rows, 1.0)
    plain.backward([*range(len(INPUTS_N3))], 1.0)
    far = gap(own.gradients(), plain.gradients())
    rule = f"with {shared} gradients are those of one process"
    require(far < FAR, config, rule, f"apart by {far:.1g}", "backward() sums over ranks; the loss is divided already")
    norm = plain.strategy.clip_grad_norm(plain.prepared, 0.1)
    returned = strategy.clip_grad_norm(own.prepared, 0.1)
    rule = "clip_grad_norm() clips by the norm over all ranks, and returns it"
    require(math.isclose(returned, norm, rel_tol=1e-4), config, rule, f"{returned} instead of {norm}")
    far = gap(own.gradients(), plain.gradients())
    require(far < FAR, config, rule, f"clipped gradients are apart by {far:.1g}")
    own.optimizer.discard()


def check_training(config: ComponentConfig, strategy: Any) -> None:
    """Updates, forwards between them, weights on every rank, a step left out, and the saved state."""
    own, plain = Training(strategy, PolicyAndCritic()), Training(LocalStrategy(), PolicyAndCritic())
    for shared, by_rank in shares(strategy.world_size).items():
        for max_norm in (1e9, 0.1):
            own.backward(by_rank[strategy.rank], 1.0)
            plain.backward([*range(len(INPUTS_N3))], 1.0)
            norms, wanted = own.step(max_norm), plain.step(max_norm)
            same = norms.keys() == wanted.keys() and all(math.isclose(norms[k], wanted[k], rel_tol=1e-4) for k in norms)
            rule = f"with {shared} norms before clipping are those of one process"
            require(same, config, rule, f"{norms} instead of {wanted}")
            far = gap(own.weights(), plain.weights())
            rule = f"after an update with {shared} every rank has the weights of one process"
            require(far < FAR, config, rule, f"rank {strategy.rank}: apart by {far:.1g}")
            check_forwards(config, strategy, own.prepared)
    before = own.weights()
    own.backward(shares(strategy.world_size)["uneven shares"][strategy.rank], math.inf if strategy.rank == 0 else 1.0)
    norms = own.step(1.0)
    left_out = not all(map(math.isfinite, norms.values())) and gap(own.weights(), before) == 0
    rule = "a step whose norm is not finite because of one rank changes nothing on any"
    require(left_out, config, rule, f"rank {strategy.rank}: norms {norms}")
    check_whole(config, strategy, own.prepared, before)
    resumed = PolicyAndCritic()
    resumed.load_state_dict(before)
    again = Training(strategy, resumed)
    again.optimizer.load_state_dict(copy.deepcopy(own.optimizer.state_dict()))
    for training in (own, again):
        training.backward(shares(strategy.world_size)["uneven shares"][strategy.rank], 0.7)
        training.step(1e9)
    far = gap(own.weights(), again.weights())
    rule = "training goes on from a saved state of the optimizer as if it had not been saved"
    require(far == 0, config, rule, f"rank {strategy.rank}: apart by {far:.1g}")


def check_whole(
    config: ComponentConfig, strategy: Any, prepared: torch.nn.Module, weights: dict[str, torch.Tensor]
) -> None:
    """Rank 0 gets weights whole: all at once, of a part, and one by one."""
    module = strategy.unwrap(prepared)
    part = {name: t for name, t in weights.items() if name.startswith("critic.")}
    for what, of, wanted in (
        ("full_state()", module, weights),
        ("full_state() of a part", module.critic, {name.removeprefix("critic."): t for name, t in part.items()}),
    ):
        state = {name: t.detach().cpu() for name, t in strategy.full_state(of).items()}
        if strategy.rank == 0:
            far = gap(state, wanted)
            require(far == 0, config, f"{what} gives rank 0 whole weights by name", f"{sorted(state)}, {far:.1g} apart")
    if issubclass(type(strategy), TensorGathering):
        check_look_ups(config, strategy, module, weights)


def check_vanished(config: ComponentConfig, strategy: Any, report: Path) -> None:
    """The last rank ends without a word; the others are not left waiting. Nothing can follow."""
    strategy.barrier("the conformance kit")
    if strategy.rank == strategy.world_size - 1:
        report.write_text("{}")
        os._exit(0)
    began = time.monotonic()
    try:
        strategy.sum_over_ranks([1.0])
        strategy.barrier("the conformance kit, of a rank that has ended")
    except Exception:
        seconds = time.monotonic() - began
        rule = "where a rank ends, the others' next collective raises soon"
        require(seconds < GONE_S, config, rule, f"after {seconds:.0f} s")
        return
    require(False, config, "where a rank ends, the others' next collective raises", "nothing was raised")


def check_rank(config: ComponentConfig, strategy: Any, folder: Path) -> None:
    """All properties but the last, in an order that every rank follows."""
    checked_strategy(strategy, f"strategy '{config.name}'", strategy.world_size)
    stage = folder / f"stage-{strategy.rank}"

    def at(what: str) -> None:
        stage.write_text(what)

    at("exchanges")
    check_exchanges(config, strategy)
    if not issubclass(type(strategy), OptimizerOwner):
        for shared, by_rank in shares(strategy.world_size).items():
            at(f"gradients, with {shared}")
            check_gradients(config, strategy, shared, by_rank[strategy.rank])
    at("updates, saved states and whole weights")
    check_training(config, strategy)
    at("weights read after prepare()")
    check_loading(config, strategy)
    at("new_group()")
    check_group(config, strategy)
    at("alone()")
    check_lone_work(config, strategy, folder)
    if issubclass(type(strategy), ModuleRelease):
        at("release()")
        check_release(config, strategy)
    at("a rank that ends")


def main() -> None:
    """Run as a rank; the report holds what did not hold."""
    die_with_parent()
    folder, rank, ranks = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    report = folder / f"report-{rank}"
    try:
        config = pickle.loads((folder / "config").read_bytes())
        torch.set_num_threads(1)
        strategy: Any = config.build(make_context(config=None, rank=rank, world_size=ranks))
        check_rank(config, strategy, folder)
        check_vanished(config, strategy, report)
        row = {}
    except AssertionError as error:
        row = {"text": str(error)}
    except BaseException as error:
        row = {"text": f"{type(error).__name__}: {error}", "trace": traceback.format_exc(), "time": time.time()}
    aside = folder / f"report-{rank}.part"
    aside.write_text(json.dumps(row))
    os.replace(aside, report)
    os._exit(1 if row else 0)  # a group of which a rank is gone cannot be left


if __name__ == "__main__":
    main()

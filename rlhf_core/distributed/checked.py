"""A strategy of a plugin, every call of which is checked and named after it."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any

from rlhf_core.plugins.component_calls import component_errors
from rlhf_core.plugins.contracts import contract_error
from rlhf_core.plugins.entry_points import CORE
from rlhf_core.plugins.strategy_protocols import Collectives, GradientSync, ModelSharding, OptimizerSharding
from rlhf_core.types.errors import PluginError

PARTS = (Collectives, ModelSharding, GradientSync, OptimizerSharding)
METHODS = tuple(n for part in PARTS for n, f in vars(part).items() if inspect.isfunction(f) and not n.startswith("_"))
ATTRIBUTES = tuple(n for part in PARTS for n in part.__annotations__)
CONTEXTS = ("gathered", "accumulate")


def checked_strategy(strategy: Any, label: str, world_size: int) -> Any:
    """The same strategy; what its methods return is checked, and what they raise named after it, but for the core's."""
    missing = [f"{m}()" for m in METHODS if not callable(getattr(strategy, m, None))]
    missing += [a for a in ATTRIBUTES if not hasattr(strategy, a)]
    if missing:
        raise PluginError(
            f"{label} has no {', '.join(missing)}",
            fix="see rlhf_core.plugins.strategy_protocols for what a strategy must have",
        )
    if strategy.world_size != world_size or not 0 <= strategy.rank < world_size:
        raise contract_error(label, f"rank {strategy.rank} of {strategy.world_size}", f"a rank of {world_size}")
    if f"({CORE} " in label:
        return strategy
    for name in METHODS:
        method = getattr(strategy, name)
        checked = _context(method, name, label) if name in CONTEXTS else _call(method, name, label, strategy)
        with contextlib.suppress(AttributeError):  # a class with __slots__ stays unchecked
            setattr(strategy, name, checked)
    return strategy


def _call(method: Callable[..., Any], name: str, label: str, strategy: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        with component_errors(label, f"{name}()"):
            answer = method(*args, **options)
        expected = _expected(name, args, answer, strategy.world_size)
        if expected:
            raise contract_error(f"{name}() of {label}", f"{type(answer).__name__} {answer!r:.80}", expected)
        return answer

    return call


def _expected(name: str, args: tuple[Any, ...], answer: Any, world_size: int) -> str:
    """What the answer should have been; "" if it is in order."""
    import torch

    def numbers(value: Any, count: int) -> bool:
        return isinstance(value, list) and len(value) == count and all(isinstance(v, int | float) for v in value)

    if name == "sum_over_ranks" and args and not numbers(answer, len(args[0])):
        return f"a list of {len(args[0])} numbers"
    if name in ("gather_objects", "exchange_objects") and not (isinstance(answer, list) and len(answer) == world_size):
        return f"a list of {world_size}, one value per rank"
    if name == "max_over_ranks" and not isinstance(answer, int):
        return "an integer"
    if name == "clip_grad_norm" and not isinstance(answer, int | float):
        return "the norm before clipping, a float"
    if name in ("prepare", "unwrap") and not isinstance(answer, torch.nn.Module):
        return "a torch module"
    return "a dict" if name in ("full_state", "optimizer_state") and not isinstance(answer, dict) else ""


def _context(method: Callable[..., Any], name: str, label: str) -> Callable[..., Any]:
    """Only what the strategy itself raises is named after it, not what is done inside."""

    @contextlib.contextmanager
    def context(*args: Any, **options: Any) -> Generator[Any, None, None]:
        with contextlib.ExitStack() as stack:
            with component_errors(label, f"{name}()"):
                value = stack.enter_context(method(*args, **options))
            yield value
            with component_errors(label, f"{name}()"):
                stack.close()

    return context

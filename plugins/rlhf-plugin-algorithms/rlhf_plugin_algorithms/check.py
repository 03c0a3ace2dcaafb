"""The one check of what an algorithm returns: of a run, and of the conformance kit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlhf_core.config import did_you_mean
from rlhf_core.plugins.contracts import contract_error
from rlhf_core.rollouts import Rollout
from rlhf_plugin_algorithms.config import COMPONENTS
from rlhf_plugin_algorithms.signals import Bools, Example, Floats, Scored, Signal, Signals, chosen


class Term(NamedTuple):
    """One component of one rollout."""

    weights_T: Floats
    """0 where the token does not count."""
    mask_T: Bools
    targets_T: Floats | None = None


Terms = Mapping[str, Term]
"""Component -> its term; empty where nothing of a rollout counts."""


def check_signals(answer: Any, scored: Scored, components: Sequence[str], label: str) -> list[Terms]:
    """The terms of each rollout.

    Args:
        answer: what ``signals()`` returned.
        components: what the algorithm's Config declares.
        label: names the algorithm and its distribution.

    Raises:
        PluginError: names the algorithm, what it returned and what was expected.
    """
    if not isinstance(answer, Signals):
        raise contract_error(label, f"a {type(answer).__name__}", "Signals([Signal(...), ...])")
    rows: list[dict[str, Term]] = [{} for _ in scored.rollouts]
    seen: set[str] = set()
    for signal in answer.signals:
        _check_component(signal, seen, components, label)
        seen.add(signal.component)
        for n, term in enumerate(_terms(signal, scored, label)):
            if term is not None:
                rows[n][signal.component] = term
    for name, value in answer.metrics.items():
        if not isinstance(value, int | float | np.number) or not math.isfinite(value):
            raise contract_error(label, f"metric '{name}' as {value!r:.80}", "a finite number")
    for example in answer.examples:
        _check_example(example, components, label)
    learns = any(np.any(term.weights_T) for row in rows for term in row.values())
    learns = learns or any(example.weight for example in answer.examples)
    if not learns and not answer.nothing and any(score.ok for score in scored.scores):
        raise contract_error(
            label,
            f"no weight but 0 for {len(scored.rollouts)} rollouts",
            'a signal, or the reason why there is none: Signals(..., nothing="equal scores in every group")',
        )
    return list(rows)


def _check_component(signal: Any, seen: set[str], components: Sequence[str], label: str) -> None:
    if not isinstance(signal, Signal):
        raise contract_error(label, f"a {type(signal).__name__} among its signals", "a Signal")
    name = signal.component
    if name not in COMPONENTS:
        hint = did_you_mean(str(name), COMPONENTS)
        raise contract_error(
            label, f"a signal of component '{name}'", f"one of {', '.join(COMPONENTS)}. {hint}".strip()
        )
    if name not in components:
        declared = f'components: ClassVar[tuple[str, ...]] = (..., "{name}") in its Config'
        raise contract_error(label, f"a signal of component '{name}', which it does not declare", declared)
    if name in seen:
        raise contract_error(label, f"two signals of component '{name}'", "one, with the sum of the weights")


def _terms(signal: Signal, scored: Scored, label: str) -> list[Term | None]:
    """One per rollout; None where no token counts."""
    count = len(scored.rollouts)
    for what, values in (("weights", signal.weights), ("masks", signal.masks), ("targets", signal.targets)):
        if values is not None and (not isinstance(values, Sequence | np.ndarray) or len(values) != count):
            size = f"{len(values)} " if isinstance(values, Sequence | np.ndarray) else ""
            returned = f"{size}{what} of '{signal.component}' for {count} rollouts"
            raise contract_error(label, returned, "a list with one entry per rollout")
    if (signal.component == "value") != (signal.targets is not None):
        returned = f"a signal '{signal.component}' with targets {signal.targets!r:.40}"
        raise contract_error(label, returned, "targets for 'value', the returns, and for no other component")
    terms: list[Term | None] = []
    for n, (rollout, weight) in enumerate(zip(scored.rollouts, signal.weights)):
        mask = None if signal.masks is None else signal.masks[n]
        terms.append(None if weight is None else _term(signal, rollout, weight, mask, n, label))
    return terms


def _term(signal: Signal, rollout: Rollout, weight: Any, mask: Any, n: int, label: str) -> Term | None:
    place = f"of '{signal.component}' for {rollout.prompt_id}#{rollout.group_index}"
    count, sampled_T, everywhere = len(rollout.completion_ids), chosen(rollout), signal.component == "cross_entropy"
    weights_T = _array(weight, count, f"weight {weight!r:.60} {place}", label)
    if mask is not None and (np.shape(mask) != (count,) or np.asarray(mask).dtype != np.bool_):
        raise contract_error(label, f"a mask of shape {np.shape(mask)} {place}", f"booleans of shape ({count},)")
    if mask is None:
        mask = weights_T != 0 if everywhere else sampled_T
    mask_T = np.asarray(mask, bool)
    if np.ndim(weight) == 0:
        weights_T = np.where(mask_T, weights_T, np.float32(0))
    outside = np.flatnonzero((mask_T | (weights_T != 0)) & ~sampled_T)
    if not everywhere and len(outside):
        raise contract_error(
            label,
            f"a weight {place} at token {outside[0]}, which the policy did not choose",
            "weights at sampled tokens (rollout.mask_T); what was not sampled is learned by 'cross_entropy'",
        )
    targets_T = None
    if signal.targets is not None:
        target = signal.targets[n]
        targets_T = _array(target, count, f"returns {target!r:.60} {place}", label, number=False)
    return Term(np.where(mask_T, weights_T, np.float32(0)), mask_T, targets_T) if mask_T.any() else None


def _array(value: Any, count: int, what: str, label: str, *, number: bool = True) -> Floats:
    try:
        array = np.asarray(value, np.float32)
    except (TypeError, ValueError) as error:
        raise contract_error(label, what, "numbers") from error
    if array.shape != (count,) and not (number and array.shape == ()):
        expected = f"{'a number, or ' * number}shape ({count},), one per completion token; prompts have no signal"
        raise contract_error(label, f"{what}, shape {array.shape}", expected)
    if not np.isfinite(array).all():
        raise contract_error(label, what, "finite numbers; None where a score is missing")
    return np.broadcast_to(array, (count,)).copy()


def _check_example(example: Any, components: Sequence[str], label: str) -> None:
    if not isinstance(example, Example):
        raise contract_error(label, f"a {type(example).__name__} among its examples", "an Example")
    if "cross_entropy" not in components:
        raise contract_error(label, "examples", "'cross_entropy' among the components that its Config declares")
    count, learned_T = len(example.completion_ids), example.learned_T
    if not count or not example.prompt_ids:
        raise contract_error(label, f"example '{example.name}' without tokens", "prompt_ids and completion_ids")
    if not math.isfinite(example.weight):
        raise contract_error(label, f"weight {example.weight} of example '{example.name}'", "a finite number")
    if learned_T is not None and (np.shape(learned_T) != (count,) or not np.any(learned_T)):
        returned = f"learned_T of shape {np.shape(learned_T)} for example '{example.name}'"
        raise contract_error(label, returned, f"booleans of shape ({count},), one at least True")

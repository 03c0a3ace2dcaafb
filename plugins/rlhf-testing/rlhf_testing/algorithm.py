"""Conformance of algorithms."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext, ComponentConfig, PluginError
from rlhf_core.data import Prompt
from rlhf_core.losses import TokenValues
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_core.rollouts import Turn
from rlhf_plugin_algorithms.check import Terms, check_signals
from rlhf_plugin_algorithms.config import AlgorithmConfig
from rlhf_plugin_algorithms.signals import Scored
from rlhf_testing.config import built, check_config
from rlhf_testing.report import frozen, left_alone, require
from rlhf_testing.samples import make_context, make_rollouts

GROUPS, SIZE = 4, 4
Ask = Callable[[Scored], list[Terms]]


def check_algorithm(config: ComponentConfig, ctx: BuildContext | None = None) -> None:
    """Check an algorithm: its signals keep the contract and teach something; a rollout without a score gets no policy
    gradient, nor moves that of other groups; the order of the rollouts does not matter; groups of equal scores are no
    error; the inputs are left alone; a resumed run goes on with the same signals.

    Args:
        config: the algorithm's configuration. It is built anew for each property.
    """
    check_config(config, "algorithm")
    fix = "derive the Config from rlhf_plugin_algorithms.config.AlgorithmConfig"
    require(isinstance(config, AlgorithmConfig), config, "it says which components its signals may be", "no", fix)
    context = ctx or make_context()

    def ask(scored: Scored) -> list[Terms]:
        return _checked_terms(config, built(config, "algorithm", context), scored)

    scored = make_scored(with_values=config.has_critic)
    terms = ask(scored)
    learned = {name for row in terms for name, term in row.items() if np.any(term.weights_T)}
    require(bool(learned), config, "scores that differ teach something", "every weight is 0")
    _check_missing(config, ask, scored, terms)
    _check_order(config, ask, scored, terms)
    ask(replace(scored, scores=[Score(0.5)] * len(scored.scores)))
    _check_resume(config, context, scored)


def make_scored(*, with_values: bool = False) -> Scored:
    """Four groups of four episodes with scores from 0 to 1; a tool wrote two tokens in the midst of each second one."""
    rollouts, groups = make_rollouts(GROUPS, SIZE)
    rollouts = [_with_tool(r) if n % 2 else r for n, r in enumerate(rollouts)]
    values = np.random.default_rng(3).uniform(size=len(rollouts))
    prompts = [Prompt(r.prompt_id, ({"role": "user", "content": "Hm?"},), "4", "kit") for r in rollouts]
    critic = [TokenValues(np.zeros(len(r.completion_ids) + 1, np.float32)) for r in rollouts] if with_values else None
    return Scored([frozen(r) for r in rollouts], [Score(float(v)) for v in values], groups, prompts, critic)


def _with_tool(rollout: Any) -> Any:
    ids, count = (*rollout.completion_ids, 7, 8, 9), len(rollout.completion_ids)
    mask_T = np.array([True] * count + [False, False, True])
    spans = ((0, count), "assistant"), ((count, count + 2), "tool"), ((count + 2, count + 3), "assistant")
    turns = tuple(Turn(span, role, {"role": role, "content": "x"}) for span, role in spans)
    logprobs_T = np.where(mask_T, np.float32(-0.5), np.float32(0))
    return replace(rollout, completion_ids=ids, logprobs_T=logprobs_T, mask_T=mask_T, turns=turns)


def _checked_terms(config: Any, algorithm: Any, scored: Scored) -> list[Terms]:
    watched = left_alone(config, algorithm.signals, "signals()", "scored")
    try:
        return check_signals(watched(scored), scored, config.components, f"algorithm '{config.name}'")
    except PluginError as error:
        require(False, config, "its signals keep the contract", str(error))
        raise


def _check_missing(config: ComponentConfig, ask: Ask, scored: Scored, terms: Sequence[Terms]) -> None:
    missing = {0, *range(SIZE, 2 * SIZE)}
    holes = [Score.failed(ScoreStatus.TIMEOUT, "late") if n in missing else s for n, s in enumerate(scored.scores)]
    found = ask(replace(scored, scores=holes))
    wrong = [n for n in missing if "policy_gradient" in found[n]]
    rule, fix = "a rollout without a score gets no policy gradient", "None where score.ok is False"
    require(not wrong, config, rule, f"rollouts {wrong} got one", fix)
    last = range((GROUPS - 1) * SIZE, GROUPS * SIZE)
    least = getattr(config, "least_group_size", 1)
    if least > 1:  # what compares with the whole batch moves with it
        moved = [n for n in last if not _same(found[n], terms[n])]
        rule = "a missing score does not move the signals of other groups"
        require(not moved, config, rule, f"rollouts {moved} got others", "take statistics over scores that are .ok")


def _check_order(config: ComponentConfig, ask: Ask, scored: Scored, terms: Sequence[Terms]) -> None:
    order = np.random.default_rng(4).permutation(len(scored.rollouts)).tolist()
    names = ("rollouts", "scores", "group_ids", "prompts")
    mixed: dict[str, Any] = {name: [getattr(scored, name)[n] for n in order] for name in names}
    mixed["values"] = None if scored.values is None else [scored.values[n] for n in order]
    found = ask(Scored(**mixed))
    wrong = [n for place, n in enumerate(order) if not _same(found[place], terms[n])]
    rule, fix = "the order of the rollouts does not matter", "go by group_ids, not by position"
    require(not wrong, config, rule, f"rollouts {wrong} got other signals", fix)


def _check_resume(config: Any, context: BuildContext, scored: Scored) -> None:
    whole, again = (built(config, "algorithm", context) for _ in range(2))
    _checked_terms(config, whole, scored)
    if hasattr(whole, "state_dict"):
        again.load_state_dict(copy.deepcopy(whole.state_dict()))
    one, other = whole.signals(scored), again.signals(scored)
    same = [e.name for e in one.examples] == [e.name for e in other.examples]
    rows = [check_signals(made, scored, config.components, config.name) for made in (one, other)]
    same = same and all(_same(a, b) for a, b in zip(*rows))
    fix = "keep all that a step needs in state_dict() and load_state_dict()"
    require(same, config, "a resumed run goes on with the same signals", "others", fix)


def _same(one: Terms, other: Terms) -> bool:
    return one.keys() == other.keys() and all(
        np.allclose(one[name].weights_T, other[name].weights_T, atol=1e-6)
        and np.array_equal(one[name].mask_T, other[name].mask_T)
        for name in one
    )

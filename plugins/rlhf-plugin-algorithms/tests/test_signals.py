"""The check of signals, the sum of their terms by hand, and what must not change the gradient."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.config import PluginError
from rlhf_core.losses import LossOutput
from rlhf_core.models import ModelConfig, load_policy
from rlhf_core.plugins.loss_contract import CheckedLoss
from rlhf_core.rewards import Score
from rlhf_core.rl.update import PolicyTerms
from rlhf_core.training import TrainingSample
from rlhf_core.training.forward import ForwardOptions
from rlhf_core.training.functional import kl_loss, reduce_loss
from rlhf_plugin_algorithms.catalogue import EchoConfig, GrpoConfig, HierarchicalGrpoConfig, MaxRlConfig
from rlhf_plugin_algorithms.check import Term, check_signals
from rlhf_plugin_algorithms.config import SignalsConfig
from rlhf_plugin_algorithms.estimator import SignalEstimator
from rlhf_plugin_algorithms.loss import SignalLoss
from rlhf_plugin_algorithms.module import Scale, SignalModule, SignalSample, of_example, of_rollout
from rlhf_plugin_algorithms.shares import TEACHER, Totals
from rlhf_plugin_algorithms.signals import Example, Scored, Signal, Signals
from rlhf_plugin_distill.loss import Divergence
from rlhf_plugin_distill.module import DistillModule, DistillSample, FullTeacher, outputs
from rlhf_plugin_distill.teacher import teacher_pieces
from rlhf_testing import check_algorithm, make_context, make_scored

LABEL = "algorithm 'mine' (acme 1.0)"
SCORED = make_scored()
COUNT = len(SCORED.rollouts)
LENGTH = len(SCORED.rollouts[1].completion_ids)
"""Of a completion whose tokens at -3 and -2 a tool wrote."""


def weights(value: Any) -> list[Any]:
    return [None, value, *[None] * (COUNT - 2)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "a NoneType"),
        (Signals([Signal("policy_gradiant", weights(1.0))]), "did you mean 'policy_gradient'"),
        (Signals([Signal("kl", weights(1.0))]), "which it does not declare"),
        (Signals([Signal("policy_gradient", [1.0])]), f"1 weights of 'policy_gradient' for {COUNT} rollouts"),
        (Signals([Signal("policy_gradient", weights(np.ones(LENGTH + 3)))]), "prompts have no signal"),
        (Signals([Signal("policy_gradient", weights(float("nan")))]), "finite numbers"),
        (Signals([Signal("policy_gradient", weights("much"))]), "numbers"),
        (Signals([Signal("policy_gradient", weights(np.ones(LENGTH)))]), f"token {LENGTH - 3}, which the policy"),
        (
            Signals([Signal("policy_gradient", weights(1.0), weights(np.ones(LENGTH, bool)))]),
            "did not choose",
        ),
        (Signals([Signal("policy_gradient", weights(1.0), weights(np.ones(LENGTH)))]), "booleans of shape"),
        (Signals([Signal("policy_gradient", weights(1.0)), Signal("policy_gradient", weights(1.0))]), "two signals"),
        (Signals([Signal("policy_gradient", weights(0.0))]), "no weight but 0"),
        (Signals([Signal("policy_gradient", weights(1.0))], metrics={"x": float("inf")}), "metric 'x'"),
        (Signals([Signal("policy_gradient", weights(1.0), targets=weights(np.ones(3)))]), "targets for 'value'"),
        (Signals([], examples=[Example("a", (1,), ())]), "without tokens"),
        (Signals([], examples=[Example("a", (1,), (2,), float("nan"))]), "of example 'a'"),
    ],
)
def test_what_breaks_the_contract_is_refused_by_the_algorithms_name(answer: Any, said: str) -> None:
    with pytest.raises(PluginError) as caught:
        check_signals(answer, SCORED, ("policy_gradient", "cross_entropy"), LABEL)
    assert said in str(caught.value)
    assert LABEL in str(caught.value)


def test_zeros_with_their_reason_and_environment_tokens_of_a_cross_entropy_are_fine() -> None:
    said = Signals([Signal("policy_gradient", [0.0] * COUNT)], nothing="equal scores")
    assert all(row.keys() == {"policy_gradient"} for row in check_signals(said, SCORED, ("policy_gradient",), LABEL))
    tool_T = np.zeros(LENGTH)
    tool_T[-3:-1] = 0.5
    [row] = [r for r in check_signals(Signals([Signal("cross_entropy", weights(tool_T))]), SCORED,
                                      ("cross_entropy",), LABEL) if r]  # fmt: skip
    assert row["cross_entropy"].mask_T.tolist() == (tool_T > 0).tolist()


@pytest.mark.parametrize("config", [GrpoConfig(), EchoConfig(), HierarchicalGrpoConfig(), MaxRlConfig()])
def test_the_algorithms_conform(config: Any) -> None:
    check_algorithm(config)


def test_solvers_are_compared_within_their_problem_and_proposers_with_each_other() -> None:
    who = [("proposer", "a"), ("solver", "a"), ("solver", "a"), ("solver", "a")]
    who += [("proposer", "b"), ("solver", "b"), ("solver", "b"), ("judge", "b")]
    rollouts = [replace(r, info={"role": a, "problem": b}) for r, (a, b) in zip(SCORED.rollouts, who)]
    scores = [Score(v) for v in (0.5, 1, 1, 0, 1.5, 0, 0, 3)]
    made = HierarchicalGrpoConfig().build(make_context()).signals(Scored(rollouts, scores, [0] * 8, ()))
    expected = [-0.5, 1 / 3, 1 / 3, -2 / 3, 0.5, 0, 0, 0]
    assert list(made.signals[0].weights) == pytest.approx(expected)


class Beside:
    """A teacher in this process, without a run."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @torch.no_grad()
    def outputs(self, samples: Any, wanted_N: torch.Tensor, paths: Any) -> FullTeacher:
        pieces = [piece for s in samples for piece in teacher_pieces(s)]
        return FullTeacher(outputs(self.model, pieces, wanted_N, paths), 0)


def policy_loss(batch: Any) -> LossOutput:
    return LossOutput(-(batch.logprobs_BT - batch.old_logprobs_BT).exp() * batch.advantages_BT)


class Mixed:
    """The pocket model in float64; two episodes with a tool's words, one taught completion, and one demonstration."""

    def __init__(self) -> None:
        policy = load_policy(ModelConfig())
        self.model = policy.model.double()
        teacher = copy.deepcopy(self.model).requires_grad_(False)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight += 0.02 * torch.randn(
                    weight.shape, dtype=weight.dtype, generator=torch.Generator().manual_seed(0)
                )
        encode = policy.tokenizer.encode
        prompt = tuple(encode("What pet does Ada have?"))
        self.rows: list[tuple[TrainingSample, dict[str, Term]]] = []
        for n, text in enumerate(("Ada has a parrot.", "It is good to know. Ada has a cat.", "Bruno lives in Oslo.")):
            ids = tuple(encode(text, add_special_tokens=False))
            sampled_T = np.ones(len(ids), bool)
            sampled_T[2:4] = n == 2
            zeros_T = np.zeros(len(ids), np.float32)
            sample = TrainingSample(f"r{n}", prompt, ids, sampled_T, zeros_T + (n - 0.5), zeros_T)
            terms = {
                "policy_gradient": Term(np.where(sampled_T, np.float32(n - 0.5), 0), sampled_T),
                "cross_entropy": Term(np.where(sampled_T, np.float32(0), 0.25), ~sampled_T),
            }
            taught = {TEACHER: Term(sampled_T.astype(np.float32), sampled_T)}
            self.rows.append((sample, taught if n == 2 else terms))
        self.example = Example("demo", prompt, tuple(encode("Ada has a goat.", add_special_tokens=False)), 2.0)
        self.teacher = Beside(teacher)

    def totals(self) -> Totals:
        every = [{name: term.mask_T for name, term in terms.items()} for _, terms in self.rows]
        every += [{"cross_entropy": np.ones(len(self.example.completion_ids), bool)}]
        names = ("policy_gradient", "cross_entropy", TEACHER)
        tokens = {n: sum(int(row[n].sum()) for row in every if n in row) for n in names}
        sequences = {n: sum(n in row for row in every) for n in names}
        return Totals(tokens, sequences, sum(int(np.logical_or.reduce(list(r.values())).sum()) for r in every), 4)

    def samples(self, reduction: str) -> list[SignalSample]:
        scale, made = Scale(reduction, self.totals()), list[SignalSample]()
        for sample, terms in self.rows:
            one = of_rollout(sample, terms, scale, 0)
            if TEACHER in terms:
                fields = {n: getattr(sample, n) for n in ("name", "prompt_ids", "completion_ids", "advantages_T")}
                one = replace(one, taught=DistillSample(**fields, mask_T=terms[TEACHER].mask_T))
            made.append(one)
        return [*made, of_example(self.example, scale, made[0])]

    def gradient(self, reduction: str, size: int, options: ForwardOptions) -> tuple[float, torch.Tensor]:
        """Loss and gradient of all micro-batches of a size."""
        divergence = Divergence(SimpleNamespace(beta=1.0, temperature=1.0))
        teacher = SimpleNamespace(beside=lambda policy: DistillModule(policy, self.teacher, divergence))
        module = SignalModule(self.model, 1.0, options, {0: teacher})
        loss = SignalLoss(policy_loss, policy_loss, None)
        samples, totals, value = self.samples(reduction), self.totals(), 0.0
        whole = {"token_mean": totals.all_tokens, "sequence_mean": 4, "constant": 4 * 10.0}[reduction]
        self.model.zero_grad()
        for start in range(0, len(samples), size):
            batch = module(samples[start : start + size])
            part = reduce_loss(loss(batch).loss, batch.reduced_BT, reduction, whole)
            part.backward()
            value += float(part.detach())
        return value, torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])

    def by_hand(self, reduction: str) -> float:
        """Each component's own mean, added up, one completion at a time."""
        sums: dict[str, list[tuple[float, int]]] = {}
        with torch.no_grad():
            for sample, terms in self.rows:
                logprobs_TV = self.logprobs(self.model, sample)
                for name, term in terms.items():
                    token_T = -logprobs_TV.gather(-1, torch.tensor(sample.completion_ids)[:, None])[:, 0]
                    if name == "policy_gradient":
                        token_T = -torch.ones_like(token_T)
                    if name == TEACHER:
                        other_TV = self.logprobs(self.teacher.model, sample)
                        token_T = (logprobs_TV.exp() * (logprobs_TV - other_TV)).sum(-1)
                    total = float((token_T * torch.tensor(term.weights_T)).sum())
                    sums.setdefault(name, []).append((total, int(term.mask_T.sum())))
            example = self.example
            logprobs_TV = self.logprobs(self.model, example)
            nll = -float(logprobs_TV.gather(-1, torch.tensor(example.completion_ids)[:, None]).sum())
            sums["cross_entropy"].append((example.weight * nll, len(example.completion_ids)))
        value = 0.0
        for rows in sums.values():
            if reduction == "token_mean":
                value += sum(total for total, _ in rows) / sum(count for _, count in rows)
            else:
                value += sum(total / (count if reduction == "sequence_mean" else 10.0) for total, count in rows) / len(
                    rows
                )
        return value

    def logprobs(self, model: Any, row: Any) -> torch.Tensor:
        ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
        return model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)


@pytest.fixture(scope="module")
def mixed() -> Mixed:
    return Mixed()


PLAIN = ForwardOptions(False, False, False)


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean", "constant"])
def test_the_loss_is_the_sum_of_each_components_own_mean(mixed: Mixed, reduction: str) -> None:
    value, _ = mixed.gradient(reduction, 4, PLAIN)
    assert value == pytest.approx(mixed.by_hand(reduction), rel=1e-6)


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("options", [PLAIN, ForwardOptions(True, True, True)])
def test_neither_micro_batches_nor_packing_change_the_gradient(
    mixed: Mixed, reduction: str, options: ForwardOptions
) -> None:
    _, expected = mixed.gradient(reduction, 4, PLAIN)
    for size in (1, 2, 3):
        _, gradient = mixed.gradient(reduction, size, options)
        assert float((gradient - expected).norm() / expected.norm()) < 1e-5


def test_a_kl_is_the_cores_to_the_reference_policy_at_the_tokens_that_have_it(mixed: Mixed) -> None:
    ctx = make_context(config=SimpleNamespace(trainer=None))
    estimator = SignalEstimator(SignalsConfig(algorithms=(GrpoConfig(),)), ctx)
    loss = estimator.with_value_loss(CheckedLoss(policy_loss, terms=[PolicyTerms(kl_estimator="k1")]))
    sample = mixed.rows[1][0]
    sampled_T = sample.mask_T
    term = Term(np.arange(len(sampled_T), dtype=np.float32), sampled_T)
    reference_T = np.linspace(-3, -1, len(sampled_T)).astype(np.float32)
    count = int(sampled_T.sum())
    totals = Totals({"kl": count}, {"kl": 1}, count, 1)
    one = of_rollout(replace(sample, ref_T=reference_T), {"kl": term}, Scale("token_mean", totals), 0)
    batch = SignalModule(mixed.model, 1.0, PLAIN, {})([one])
    expected = kl_loss(batch.logprobs_BT, batch.ref_logprobs_BT, "k1", old_logprobs_BT=batch.old_logprobs_BT)
    assert torch.equal(loss(batch).loss, expected * torch.tensor(term.weights_T))

"""Divergences against enumeration and against TRL 1.16, and what must not change them."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlhf_core.config import ConfigError, Registry
from rlhf_core.models import LoadedModel, ModelConfig, load_policy
from rlhf_core.training import PolicyModule, TrainingSample
from rlhf_plugin_distill import module as module_file
from rlhf_plugin_distill.loss import Divergence, generalized_jsd, with_tail
from rlhf_plugin_distill.loss_config import ForwardKlConfig, JsdConfig, ReverseKlConfig
from rlhf_plugin_distill.module import DistillModule, DistillSample, FullTeacher, Outputs, outputs
from rlhf_plugin_distill.teacher import distill_sample, teacher_pieces

TEXTS = [
    ("What pet does Ada have?", "Ada has a parrot."),
    ("Where does Bruno live?", "Bruno lives in Oslo. It is always good to know such things."),
    ("What does Clara do for work?", "Maybe Clara works as a pilot."),
    ("What pet does Ada have?", "Absolutely! I guess Ada has a cat."),
]


def by_hand(p: list[float], q: list[float], beta: float) -> float:
    """Of a teacher p and a student q, one outcome after another."""

    def kl(a: list[float], b: list[float]) -> float:
        return sum(x * math.log(x / y) for x, y in zip(a, b) if x)

    if beta in (0, 1):
        return kl(q, p) if beta else kl(p, q)
    m = [beta * x + (1 - beta) * y for x, y in zip(p, q)]
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_value_and_gradient_are_those_of_every_outcome_enumerated(beta: float) -> None:
    generator = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(1, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    student.requires_grad_()
    value = generalized_jsd(student.log_softmax(-1), teacher.log_softmax(-1), beta)
    p, width = teacher.softmax(-1)[0].tolist(), 1e-6

    def at(logits: list[float]) -> float:
        return by_hand(p, torch.tensor(logits, dtype=torch.float64).softmax(-1).tolist(), beta)

    logits = student[0].tolist()
    assert value.item() == pytest.approx(at(logits), abs=1e-12)
    steps = [[x + width * (n == k) for n, x in enumerate(logits)] for k in range(4)]
    back = [[x - width * (n == k) for n, x in enumerate(logits)] for k in range(4)]
    expected = [(at(a) - at(b)) / (2 * width) for a, b in zip(steps, back)]
    value.sum().backward()
    assert student.grad is not None
    assert student.grad[0].tolist() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_ids_without_a_text_have_no_part_in_it(beta: float) -> None:
    student, teacher = (torch.randn(3, 6, generator=torch.Generator().manual_seed(n)) for n in range(2))
    without = generalized_jsd(student[:, :5].log_softmax(-1), teacher[:, :5].log_softmax(-1), beta)
    student[:, 5] = teacher[:, 5] = -torch.inf
    student.requires_grad_()
    value = generalized_jsd(student.log_softmax(-1), teacher.log_softmax(-1), beta)
    assert torch.equal(value, without)
    value.sum().backward()
    assert student.grad is not None
    assert student.grad.isfinite().all()


def test_the_tail_is_all_other_tokens_together() -> None:
    logits = torch.randn(2, 7, dtype=torch.float64)
    ids = torch.tensor([[3, 0], [6, 1]])
    rows = with_tail(logits.log_softmax(-1), ids).exp()
    p = logits.softmax(-1)
    assert torch.allclose(rows[:, :2], p.gather(-1, ids))
    assert torch.allclose(rows.sum(-1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("options", [{"beta": -0.1}, {"beta": 1.5}, {"temperature": 0}, {"temperature": math.inf}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises((ConfigError, ValueError), match=next(iter(options))):
        JsdConfig.from_settings(options)


class Beside:
    """A teacher in this process, without a run."""

    def __init__(self, model: Any, top_k: int = 0) -> None:
        self.model, self.top_k = model, top_k

    @torch.no_grad()
    def outputs(self, samples: Any, wanted_N: torch.Tensor, paths: Any) -> FullTeacher:
        pieces = [piece for s in samples for piece in teacher_pieces(s)]
        return FullTeacher(outputs(self.model, pieces, wanted_N, paths), self.top_k)


class Both:
    """The pocket model, a teacher that differs from it, and four answers, one with a word that does not count."""

    def __init__(self) -> None:
        self.policy: LoadedModel = load_policy(ModelConfig())
        self.policy.model.double()  # other kernels round float32 otherwise
        self.student, self.teacher = self.policy.model, copy.deepcopy(self.policy.model).requires_grad_(False)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in self.student.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        encode = self.policy.tokenizer.encode
        self.samples: list[DistillSample] = []
        for n, (prompt, text) in enumerate(TEXTS):
            ids = tuple(encode(text, add_special_tokens=False))
            mask = np.array([n != 1 or t != 2 for t in range(len(ids))])
            zeros = np.zeros(len(ids), np.float32)
            self.samples.append(distill_sample(TrainingSample(str(n), tuple(encode(prompt)), ids, mask, zeros), None))

    def module(self, config: Any, top_k: int = 0) -> DistillModule:
        return DistillModule(PolicyModule(self.student), Beside(self.teacher, top_k), Divergence(config))

    def ours(self, config: Any, top_k: int = 0, cuts: tuple[int, ...] = (0, 3, 4)) -> torch.Tensor:
        """The mean over all tokens, in micro-batches of 3 and 1."""
        module, tokens = self.module(config, top_k), sum(s.tokens for s in self.samples)
        batches = [module(self.samples[a:b]) for a, b in pairwise(cuts)]
        return torch.stack([(module.loss(batch).loss * batch.mask_BT).sum() for batch in batches]).sum() / tokens

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(self.student.parameters()))])

    def padded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and labels, as TRL's collator makes them."""
        rows = [(*s.prompt_ids, *s.completion_ids) for s in self.samples]
        width = max(map(len, rows))
        labels = [
            [-100] * len(s.prompt_ids)
            + [i if m else -100 for i, m in zip(s.completion_ids, s.mask_T)]
            + [-100] * (width - len(row))
            for s, row in zip(self.samples, rows)
        ]
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows]), torch.tensor(labels)


@pytest.fixture(scope="module")
def both() -> Both:
    return Both()


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_loss_and_gradient_are_those_of_trl_gkd(both: Both, beta: float, temperature: float) -> None:
    gkd = pytest.importorskip("trl.experimental.gkd").GKDTrainer
    ids, labels = both.padded()
    logits = [model(input_ids=ids).logits[:, :-1] for model in (both.student, both.teacher)]
    theirs = gkd.generalized_jsd_loss(*logits, labels=labels[:, 1:], beta=beta, temperature=temperature)
    ours = both.ours(JsdConfig(beta=beta, temperature=temperature))
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-9)
    assert (both.gradient(ours) - both.gradient(theirs)).abs().max() < 1e-9


@pytest.mark.parametrize("config", [ForwardKlConfig(), JsdConfig(), ReverseKlConfig()], ids=lambda c: c.name)
def test_loss_and_gradient_are_those_of_trl_distillation(both: Both, config: Any) -> None:
    trl = pytest.importorskip("trl.trainer.distillation_trainer")
    ids, labels = both.padded()
    hidden = [model.get_decoder()(input_ids=ids).last_hidden_state[:, :-1] for model in (both.student, both.teacher)]
    heads = [model.get_output_embeddings().weight for model in (both.student, both.teacher)]
    theirs, *_ = trl._chunked_divergence_loss(*hidden, *heads, labels[:, 1:] != -100, config.beta)
    ours = both.ours(config)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    gradient = both.gradient(theirs)  # in float32, whatever the models are in; up to 2.6
    assert (both.gradient(ours) - gradient).abs().max() < 2e-6 * gradient.abs().max().clamp(min=1)


@pytest.mark.parametrize("top_k", [0, 5])
def test_chunks_packing_and_micro_batches_change_nothing(
    both: Both, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = both.ours(JsdConfig(), top_k)
    expected = both.gradient(plain)
    monkeypatch.setattr(module_file, "CHUNK_BYTES", 4 * 1024 * 7)
    cut = both.ours(JsdConfig(), top_k, cuts=(0, 1, 2, 3, 4))
    assert cut.item() == pytest.approx(plain.item(), abs=1e-6)
    assert (both.gradient(cut) - expected).abs().max() < 1e-5


def test_top_k_of_all_but_one_token_is_the_whole_vocabulary(both: Both) -> None:
    vocabulary = both.student.get_output_embeddings().weight.shape[0]
    whole, nearly = both.ours(JsdConfig()), both.ours(JsdConfig(), vocabulary - 1)
    assert nearly.item() == pytest.approx(whole.item(), abs=1e-6)
    assert both.ours(JsdConfig(), 3).item() < whole.item()  # fewer outcomes cannot differ by more


class Largest(TorchDispatchMode):
    """The most elements of a float tensor as wide as the vocabulary that anything makes, weights left out."""

    def __init__(self, vocabulary: int, weights: set[torch.Size]) -> None:
        super().__init__()
        self.vocabulary, self.weights, self.rows = vocabulary, weights, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            wide = isinstance(tensor, torch.Tensor) and tensor.ndim == 2 and tensor.shape[1] == self.vocabulary
            if wide and tensor.shape not in self.weights:
                self.rows = max(self.rows, tensor.shape[0])
        return out


def test_no_tensor_of_all_tokens_and_the_vocabulary_is_made(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = both.student.get_output_embeddings().weight
    vocabulary, rows = weight.shape[0], 8
    monkeypatch.setattr(module_file, "CHUNK_BYTES", 4 * vocabulary * rows)
    module, tokens = both.module(JsdConfig()), sum(s.tokens for s in both.samples)
    module(both.samples)  # tries the model's structure
    with Largest(vocabulary, {weight.shape, weight.T.shape}) as largest:
        module.loss(module(both.samples)).loss.sum().backward()
    both.student.zero_grad()
    assert largest.rows == rows < tokens


def test_a_teacher_of_further_rows_without_a_token(both: Both) -> None:
    rows = torch.randn(4, 6)
    longer = torch.cat([rows, torch.full((4, 2), -torch.inf)], -1)
    student = torch.randn(4, 6).log_softmax(-1)
    pairs = [FullTeacher(Outputs(t, lambda x: x), 0).compared(student, slice(0, 4), 1.0) for t in (rows, longer)]
    assert all(torch.equal(a, b) for a, b in zip(*pairs))


def test_a_model_that_does_not_split_gives_its_own_logits(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = both.ours(JsdConfig())
    monkeypatch.setattr(module_file, "split_lm_head", lambda model, linear: None)
    assert both.ours(JsdConfig()).item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("name", ["forward_kl", "reverse_kl", "jsd"])
def test_conforms(name: str) -> None:
    from rlhf_testing import check_loss

    check_loss(Registry(disabled=()).load("loss", name)(name=name))  # pyright: ignore

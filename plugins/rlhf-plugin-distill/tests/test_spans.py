"""A teacher with another tokenizer: spans of text that both have, their likelihoods by hand, and whole runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import rlhf_core
from rlhf_core.config import UserError
from rlhf_core.models import Formatter, LoadedModel, ModelConfig, load_policy, load_tokenizer
from rlhf_core.training import PolicyModule, TrainingSample
from rlhf_plugin_distill.loss import Divergence, with_tail
from rlhf_plugin_distill.loss_config import ForwardKlConfig, JsdConfig, ReverseKlConfig
from rlhf_plugin_distill.module import DistillModule, DistillSample
from rlhf_plugin_distill.spans import Span, SpanTeacher, align, exact_logprobs
from rlhf_plugin_distill.teacher import LocalOtherTokenizer, distill_sample

Command = Callable[..., tuple[int, str]]
TEXTS = ("Ada has a parrot.", "Größe: 5 µm", "Maybe Clara works as a pilot.")
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<end>{% endfor %}assistant: "


def save_byte_model(folder: Path, *, lowercase: bool = False) -> Path:
    """A tiny random model whose tokens are bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<pad>": 0, "<end>": 1, **{letter: n for n, letter in enumerate(letters, 2)}}
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=258, max_position_embeddings=512, eos_token_id=1, pad_token_id=0, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_model(tmp_path_factory.mktemp("teacher") / "bytes")


@pytest.fixture(scope="module")
def student() -> LoadedModel:
    loaded = load_policy(ModelConfig())
    loaded.model.double()
    return loaded


def written(tokenizer: Any) -> Formatter:
    return Formatter(tokenizer, "auto")


def test_spans_end_where_both_end_a_token(student: LoadedModel, byte_model: Path) -> None:
    ours, theirs = written(student.tokenizer), written(load_tokenizer(ModelConfig(path=str(byte_model))))
    ids = [*student.tokenizer.encode("Ada has µ", add_special_tokens=False), student.tokenizer.eos_token_id]
    assert [student.tokenizer.decode([i]) for i in ids] == ["A", "da", " has", " ", "\ufffd", "\ufffd", "<|end|>"]
    teacher_ids, spans = align(ours, ids, theirs, 100)
    assert theirs.tokenizer.decode(teacher_ids) == "Ada has µ<end>"
    assert spans == [(0, 1, 0, 1), (1, 2, 1, 3), (2, 3, 3, 7), (3, 4, 7, 8), (4, 6, 8, 10), (6, 7, 10, 11)]
    assert align(ours, ids, theirs, 7) == (teacher_ids[:7], spans[:3]), "what does not fit is left out, and the end"
    assert align(ours, ids[:5], theirs, 100)[1] == spans[:4], "half a character is of no span"
    assert align(theirs, teacher_ids, ours, 100)[1] == [Span(c, d, a, b) for a, b, c, d in spans]
    broken = [*ids[:1], ids[4], *ids[:1]]
    assert student.tokenizer.decode(broken) == "A\ufffdA"
    assert align(ours, broken, theirs, 100)[1] == spans[:1], "a byte that is no character is not what the teacher reads"
    marked = [*ids[:2], ids[-1], *ids[:1], ids[-1]]
    assert [span[:2] for span in align(ours, marked, theirs, 100)[1]] == [(0, 1), (1, 2), (3, 4), (4, 5)], (
        "a special token is of no span but at the end: the teacher reads letters"
    )
    spelled = student.tokenizer.encode("a<end>b", add_special_tokens=False)
    assert theirs.tokenizer.eos_token_id not in align(ours, spelled, theirs, 100)[0], (
        "letters, as the student wrote them"
    )


def test_the_end_is_that_of_the_chat_template(student: LoadedModel, byte_model: Path) -> None:
    """As in Gemma, whose turns end by ``<end_of_turn>``, and whose tokenizer's EOS is another token."""
    ours, theirs = written(student.tokenizer), load_tokenizer(ModelConfig(path=str(byte_model)))
    theirs.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    theirs.chat_template = TEMPLATE.replace("<end>", "<turn>")
    turn, other = theirs.convert_tokens_to_ids("<turn>"), written(theirs)
    end = student.tokenizer.eos_token_id
    ids = [*student.tokenizer.encode("Ada", add_special_tokens=False), end]
    teacher_ids, spans = align(ours, ids, other, 100)
    assert (teacher_ids[-1], spans[-1]) == (turn, (2, 3, 3, 4))
    assert align(other, teacher_ids, ours, 100) == (ids, [Span(c, d, a, b) for a, b, c, d in spans])
    by_eos = [*teacher_ids[:-1], theirs.eos_token_id]
    assert align(other, by_eos, ours, 100)[0] == ids, "it may end so too"


def by_hand(p: float, q: float, beta: float) -> float:
    """Of two outcomes, which the teacher gives p and 1 - p, the student q and 1 - q."""
    pairs = [(p, q), (1 - p, 1 - q)]
    if beta in (0, 1):
        return sum((b * math.log(b / a)) if beta else (a * math.log(a / b)) for a, b in pairs)
    mixed = [(a, b, beta * a + (1 - beta) * b) for a, b in pairs]
    return sum(beta * a * math.log(a / m) + (1 - beta) * b * math.log(b / m) for a, b, m in mixed)


@pytest.mark.parametrize("config", [ForwardKlConfig(), JsdConfig(beta=0.3), ReverseKlConfig()], ids=lambda c: c.name)
def test_the_divergence_of_a_span_by_hand(config: Any) -> None:
    """The student says it in the tokens 0.5 and 0.4, the teacher in one of 0.3; one token is of no span."""
    ours = torch.tensor([0.5, 0.4, 0.9, 0.7], dtype=torch.float64).log().requires_grad_()
    theirs = torch.tensor([0.3, 0.2, 0.8], dtype=torch.float64).log()
    teacher = SpanTeacher(lambda _: theirs, torch.tensor([0, 1, 1]), torch.tensor([0, 0, -1, 1]), torch.tensor([1, 3]))
    value = teacher.divergence(Divergence(config), ours)
    expected = [0.0, by_hand(0.3, 0.5 * 0.4, config.beta), 0.0, by_hand(0.2 * 0.8, 0.7, config.beta)]
    assert value.tolist() == pytest.approx(expected, abs=1e-12)
    value.sum().backward()
    assert ours.grad is not None
    width = 1e-6
    slope = (by_hand(0.3, 0.2 * math.exp(width), config.beta) - by_hand(0.3, 0.2 * math.exp(-width), config.beta)) / 2
    assert ours.grad.tolist()[:3] == pytest.approx([slope / width, slope / width, 0.0], abs=1e-8)


def test_a_span_that_is_certain_has_a_finite_gradient() -> None:
    ours = torch.tensor([0.0, -80.0]).requires_grad_()
    teacher = SpanTeacher(
        lambda _: torch.tensor([-3.0, 0.0]), torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([0, 1])
    )
    for beta in (0.0, 0.5, 1.0):
        value = teacher.divergence(Divergence(SimpleNamespace(beta=beta, temperature=1.0)), ours).sum()
        (gradient,) = torch.autograd.grad(value, ours)
        assert value.isfinite()
        assert gradient.isfinite().all()


def test_a_student_that_is_too_certain_has_the_gradient_of_all_tokens() -> None:
    """In float32, where its log-probability of the token is 0."""
    logits = torch.tensor([[30.0, 0.0, -1.0]]).requires_grad_()
    target = torch.tensor([0])
    assert logits.log_softmax(-1)[0, 0] == 0
    one = torch.zeros(1, dtype=torch.int64)
    teacher = SpanTeacher(lambda _: torch.tensor([0.6]).log(), one, one, one)
    value = teacher.divergence(Divergence(ForwardKlConfig()), exact_logprobs(logits.log_softmax(-1), target))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert gradient[0, 0].item() == pytest.approx(1 - 0.6, rel=1e-4), "q - p"


def samples(student: LoadedModel, teacher: Any, leave_out: int = 2) -> list[DistillSample]:
    rows: list[DistillSample] = []
    prompt, teacher_prompt = (tuple(t.encode("Who?", add_special_tokens=False)) for t in (student.tokenizer, teacher))
    for n, text in enumerate(TEXTS):
        ids = (*student.tokenizer.encode(text, add_special_tokens=False), student.tokenizer.eos_token_id)
        mask = np.array([n != 1 or t != leave_out for t in range(len(ids))])
        sample = TrainingSample(str(n), prompt, ids, mask, np.zeros(len(ids), np.float32))
        rows.append(distill_sample(sample, teacher_prompt))
    return rows


def beside(student: LoadedModel, model: Any, tokenizer: Any) -> LocalOtherTokenizer:
    """A teacher without a run."""
    teacher = object.__new__(LocalOtherTokenizer)
    vars(teacher).update(model=model, context=512, student=written(student.tokenizer), formatter=written(tokenizer))
    return teacher


def logprobs(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)


@pytest.mark.parametrize("config", [ForwardKlConfig(), JsdConfig(), ReverseKlConfig()], ids=lambda c: c.name)
def test_loss_and_gradient_are_those_of_each_span_on_its_own(
    student: LoadedModel, byte_model: Path, config: Any
) -> None:
    other = load_policy(ModelConfig(path=str(byte_model)))
    other.model.double().requires_grad_(False)
    teacher = beside(student, other.model, other.tokenizer)
    rows = teacher.with_teacher_logprobs(samples(student, other.tokenizer))
    module = DistillModule(PolicyModule(student.model), teacher, Divergence(config))
    output = module.loss(batch := module(rows))
    total, spans = torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        ours = logprobs(student.model, row.prompt_ids, row.completion_ids)
        theirs = logprobs(other.model, row.teacher_prompt or (), row.teacher_completion)
        for start, end, teacher_start, teacher_end in row.spans:
            if not row.mask_T[start:end].all():
                continue
            q = sum((ours[t, row.completion_ids[t]] for t in range(start, end)), torch.zeros(()).double())
            p = sum(theirs[t, row.teacher_completion[t]].item() for t in range(teacher_start, teacher_end))
            spans += 1
            pairs = [(torch.tensor(p).double(), q)]
            pairs.append((torch.tensor(math.log(-math.expm1(p))).double(), torch.log(-torch.expm1(q))))
            for a, b in pairs:
                if config.beta in (0, 1):
                    total = total + (b.exp() * (b - a) if config.beta else a.exp() * (a - b))
                else:
                    m = (config.beta * a.exp() + (1 - config.beta) * b.exp()).log()
                    total = total + config.beta * a.exp() * (a - m) + (1 - config.beta) * b.exp() * (b - m)
    assert spans == sum(len(row.spans) for row in rows) - 1, "the one with a token that does not count"
    ours_sum = output.loss[batch.mask_BT].sum()
    assert ours_sum.item() == pytest.approx(total.item(), rel=1e-6), (
        "the terms written here round where a token is nearly certain"
    )
    parameters = list(student.model.parameters())
    gradients = [
        torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)]) for value in (ours_sum, total)
    ]
    assert (gradients[0] - gradients[1]).abs().max() < 1e-6 * gradients[1].abs().max().clamp(min=1)
    aligned, counted = output.metrics["teacher/aligned"]
    assert (int(aligned), counted) == (sum(row.tokens for row in rows) - 1, sum(row.tokens for row in rows))


def test_with_equal_tokenizers_it_is_the_loss_of_the_sampled_token_and_all_others(student: LoadedModel) -> None:
    other = load_policy(ModelConfig())
    with torch.no_grad():
        for weight in other.model.double().requires_grad_(False).parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=weight.dtype)
    teacher = beside(student, other.model, other.tokenizer)
    rows = [rows for rows in samples(student, other.tokenizer, leave_out=99) if rows.name != "1"]
    rows = teacher.with_teacher_logprobs(rows)
    loss = Divergence(JsdConfig(temperature=0.7))
    batch = DistillModule(PolicyModule(student.model), teacher, loss)(rows)
    expected: list[torch.Tensor] = []
    for row in rows:
        ids = torch.tensor(row.completion_ids)[:, None]
        pair = (logprobs(model, row.prompt_ids, row.completion_ids) for model in (student.model, other.model))
        expected.append(loss.divergence(*(with_tail((lp / 0.7).log_softmax(-1), ids) for lp in pair)))
    assert batch.divergence_BT is not None
    assert torch.allclose(batch.divergence_BT[batch.mask_BT], torch.cat(expected), atol=1e-9)


def test_completions_without_a_span_teach_nothing(student: LoadedModel, byte_model: Path) -> None:
    other = load_policy(ModelConfig(path=str(byte_model)))
    teacher = beside(student, other.model, other.tokenizer)
    teacher.context = len("Who?")
    rows = teacher.with_teacher_logprobs(samples(student, other.tokenizer))
    module = DistillModule(PolicyModule(student.model), teacher, Divergence(ReverseKlConfig()))
    output = module.loss(module(rows))
    output.loss.sum().backward()
    student.model.zero_grad()
    assert output.loss.eq(0).all()
    assert int(output.metrics["teacher/aligned"][0]) == 0


SMALL = {
    "threads": 1,
    "trainer.steps": 3,
    "trainer.rollout_batch_size": 8,
    "trainer.sampling": {"max_tokens": 12},
    "trainer.eval_samples": 0,
    "trainer.gold_samples": 0,
    "dataset.limit": 64,
}
OFFLINE = {"threads": 1, "trainer.max_steps": 3, "trainer.batch_size": 8, "trainer.eval_samples": 2}


def train(folder: Path, algo: str, teacher: Path, **settings: Any) -> Any:
    dataset = "pocket/arithmetic" if algo == "distill" else "pocket/assistant"
    settings = {
        **(SMALL if algo == "distill" else {**OFFLINE, "dataset.limit": 64}),
        "trainer.teacher": {"path": str(teacher), "tokenizer": "other"},
        **settings,
    }
    return rlhf_core.train(algo, dataset=dataset, settings=settings, run_dir=folder, progress=False)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [row for row in map(json.loads, (folder / "metrics.jsonl").open()) if "grad_norm" in row]
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]


def test_a_student_learns_from_its_own_completions_and_goes_on(tmp_path: Path, byte_model: Path) -> None:
    train(tmp_path / "whole", "distill", byte_model)
    whole = rows_of(tmp_path / "whole")
    assert len(whole) == 3
    assert all(row["loss"] > 0 < row["grad_norm"] and row["teacher/aligned"] > 0.9 for row in whole)
    train(tmp_path / "cut", "distill", byte_model, **{"trainer.steps": 1}).resume(settings={"trainer.steps": 3})
    assert rows_of(tmp_path / "cut") == whole


def test_a_student_comes_nearer_on_demonstrations(tmp_path: Path, byte_model: Path) -> None:
    settings = {"trainer.max_steps": 8, "trainer.batch_size": 16, "dataset.limit": 16, "trainer.epochs": 8.0}
    more = {"trainer.optimizer": {"learning_rate": 1e-3, "warmup_steps": 1, "schedule": "constant"}}
    train(tmp_path / "run", "distill_offline", byte_model, **settings, **more)
    losses = [row["loss"] for row in rows_of(tmp_path / "run")]
    assert len(losses) == 8
    assert losses[-1] < 0.7 * losses[0], losses


def test_the_teacher_reads_its_own_chat_template(tmp_path: Path, byte_model: Path) -> None:
    from rlhf_plugin_distill.teacher import TeacherPrompts
    from rlhf_plugin_distill.teacher_config import TeacherSettings

    other = load_policy(ModelConfig(path=str(byte_model)))
    teacher = beside(load_policy(ModelConfig()), other.model, other.tokenizer)
    ctx: Any = SimpleNamespace(config=SimpleNamespace(model=ModelConfig()))
    policy: Any = load_policy(ModelConfig())
    settings = TeacherSettings(path=str(byte_model), tokenizer="other")
    ids = TeacherPrompts(settings, policy, ctx, teacher)("a", [{"role": "user", "content": "Who?"}], (), {}, 4)
    assert ids is not None
    assert other.tokenizer.decode(ids) == "user: Who?<end>assistant: "


@pytest.mark.parametrize(
    ("algo", "settings", "says"),
    [
        ("distill", {"trainer.teacher.tokenizer": "same"}, "--set trainer.teacher.tokenizer=other"),
        ("distill", {"trainer.teacher.top_k": 5}, "cannot be combined with trainer.teacher.top_k"),
        ("distill_offline", {"trainer.learn": "all"}, "tokenizer=other cannot be combined with learn: all"),
    ],
)
def test_what_cannot_work_is_refused(
    tmp_path: Path, byte_model: Path, algo: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError) as caught:
        train(tmp_path / "run", algo, byte_model, **settings)
    assert says in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_changes_texts_is_refused(tmp_path: Path) -> None:
    folder = save_byte_model(tmp_path / "lower", lowercase=True)
    with pytest.raises(UserError) as caught:
        train(tmp_path / "run", "distill", folder)
    assert "does not give back what it reads" in str(caught.value)
    assert not (tmp_path / "run").exists()

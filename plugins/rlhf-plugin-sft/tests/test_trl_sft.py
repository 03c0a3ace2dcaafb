"""Loss and gradient equal those of TRL 1.16's SFTTrainer on the same rows: padded, packed, and on every answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.models import Formatter, LoadedModel, ModelConfig, ModelError, load_policy
from rlhf_core.training import PolicyModule, TrainingSample
from rlhf_core.training.functional import reduce_loss
from rlhf_plugin_sft.loss import CrossEntropy
from rlhf_plugin_sft.task import all_answers, last_answer

pytest.importorskip("trl")
from datasets import Dataset
from trl import SFTConfig, SFTTrainer


def turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


CHATS = [
    [turn("user", "What pet does Ada have?"), turn("assistant", "Ada has a parrot.")],
    [
        turn("user", "Where does Bruno live?"),
        turn("assistant", "Bruno lives in Oslo."),
        turn("user", "And his pet?"),
        turn("assistant", "Bruno has a goat. It is always good to know such things about people."),
    ],
    [turn("user", "Which colour does Dario wear?"), turn("assistant", "Red.")],
]
GENERATION = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}{{ '<|end|>' }}{% endgeneration %}{% else %}{{ m['content'] }}"
    "{{ '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""The pocket model's own template, with the marks from which TRL reads which tokens the assistant wrote."""


def gradient(policy: LoadedModel, loss: torch.Tensor) -> torch.Tensor:
    weights = [w for w in policy.model.parameters() if w.requires_grad]
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    return torch.cat([torch.zeros_like(w).flatten() if g is None else g.flatten() for g, w in zip(gradients, weights)])


def training_samples(policy: Any, cut: Any) -> list[TrainingSample]:
    """The conversations as this toolkit learns them."""
    formatter = Formatter(policy.tokenizer, "chat")
    all_turns = [cut(formatter, chat[:-1], chat[-1]["content"]) for chat in CHATS]
    return [
        TrainingSample(str(n), t.prompt, t.completion, np.array(t.learned), np.ones(len(t.completion), np.float32))
        for n, t in enumerate(all_turns)
    ]


def trl_trainer(policy: Any, kind: str, folder: Path) -> SFTTrainer:
    """TRL's trainer on the same conversations."""
    if kind == "all_answers":
        rows: list[dict[str, Any]] = [{"messages": chat} for chat in CHATS]
        policy.tokenizer.chat_template = GENERATION
    else:
        rows = [{"prompt": chat[:-1], "completion": chat[-1:]} for chat in CHATS]
    args = SFTConfig(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=3,
        assistant_only_loss=kind == "all_answers",
        packing=kind == "packed",
        max_length=256,
    )
    return SFTTrainer(
        model=policy.model, args=args, train_dataset=Dataset.from_list(rows), processing_class=policy.tokenizer
    )


@pytest.mark.parametrize("kind", ["padded", "packed", "all_answers"])
def test_loss_and_gradient_equal_trls(kind: str, tmp_path: Path) -> None:
    policy = load_policy(ModelConfig())
    items = training_samples(policy, all_answers if kind == "all_answers" else last_answer)
    total = float(sum(i.tokens for i in items))
    our_loss = torch.zeros(())
    for micro in (items[:2], items[2:]):
        batch = PolicyModule(policy.model)(micro)
        our_loss = our_loss + reduce_loss(CrossEntropy()(batch).loss, batch.mask_BT, "token_mean", total)
    our_gradient = gradient(policy, our_loss)

    trainer = trl_trainer(policy, kind, tmp_path)
    batch = trainer.data_collator([trainer.train_dataset[n] for n in range(len(trainer.train_dataset))])
    assert int((batch["labels"] != -100).sum()) == total, "the same tokens count"
    assert batch["input_ids"].shape[0] == (1 if kind == "packed" else 3)
    trainer.model.eval()
    trl_loss = trainer.compute_loss(trainer.model, batch)
    assert float(our_loss.detach()) == pytest.approx(float(trl_loss.detach()), rel=2e-5)
    trl_gradient = gradient(policy, trl_loss)
    assert float((our_gradient - trl_gradient).norm() / trl_gradient.norm()) < 2e-4


def test_an_answer_sees_what_it_will_be_fed() -> None:
    policy = load_policy(ModelConfig())
    formatter = Formatter(policy.tokenizer, "chat")
    chat = CHATS[1]
    turns = all_answers(formatter, chat[:-1], chat[-1]["content"])
    whole = policy.tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)
    assert [*turns.prompt, *turns.completion] == list(whole)
    learned = [t for t, yes in zip(turns.completion, turns.learned) if yes]
    answers = [m["content"] + "<|end|>" for m in chat if m["role"] == "assistant"]
    assert policy.tokenizer.decode(learned) == "".join(answers)
    begin = len(turns.completion) - turns.learned[::-1].index(False)
    assert (*turns.prompt, *turns.completion[:begin]) == formatter.encode(chat[:-1]), "the last prompt as it is fed"


@pytest.mark.parametrize("answer", ["end", "|", "", "user", "Red.\nBlue."])
def test_answers_are_found_by_their_place(answer: str) -> None:
    """An answer that the closing mark ``<|end|>`` contains, and an empty one."""
    policy = load_policy(ModelConfig())
    formatter = Formatter(policy.tokenizer, "chat")
    chat = [turn("user", "Which colour?"), turn("assistant", answer), turn("user", "Sure?"), turn("assistant", "Yes.")]
    turns = all_answers(formatter, chat[:-1], "Yes.")
    assert [*turns.prompt, *turns.completion] == list(
        policy.tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)
    )
    learned = [t for t, yes in zip(turns.completion, turns.learned) if yes]
    assert policy.tokenizer.decode(learned) == f"{answer}<|end|>Yes.<|end|>"


@pytest.mark.parametrize("cut", [last_answer, all_answers])
def test_turns_are_closed_as_the_template_closes_them(cut: Any) -> None:
    policy = load_policy(ModelConfig())
    policy.tokenizer.chat_template = str(policy.tokenizer.chat_template).replace("<|end|>", "<|user|>")
    turns = cut(Formatter(policy.tokenizer, "chat"), CHATS[1][:-1], "Hi.")
    whole = policy.tokenizer.apply_chat_template([*CHATS[1][:-1], turn("assistant", "Hi.")], return_dict=False)
    assert [*turns.prompt, *turns.completion] == whole
    assert policy.tokenizer.decode(turns.completion).endswith("Hi.<|user|>")


def test_earlier_answers_are_learned_as_the_template_writes_them_later() -> None:
    """Qwen 3 writes an empty thought before the last answer alone."""
    policy = load_policy(ModelConfig())
    policy.tokenizer.chat_template = str(policy.tokenizer.chat_template).replace(
        "{{ m['content'] }}", "{% if loop.last and m['role'] == 'assistant' %}<think>{% endif %}{{ m['content'] }}"
    )
    turns = all_answers(Formatter(policy.tokenizer, "chat"), CHATS[1][:-1], "Hi.")
    whole = policy.tokenizer.apply_chat_template([*CHATS[1][:-1], turn("assistant", "Hi.")], return_dict=False)
    assert [*turns.prompt, *turns.completion] == whole
    learned = policy.tokenizer.decode([t for t, yes in zip(turns.completion, turns.learned) if yes])
    assert learned == "Bruno lives in Oslo.<|end|><think>Hi.<|end|>"


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    policy = load_policy(ModelConfig())
    policy.tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if loop.last %}"
        "{{ m['content'] }}{% else %}{{ m['content'][:2] }}{% endif %}{{ '<|end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    with pytest.raises(ModelError, match="cannot render a turn"):
        all_answers(Formatter(policy.tokenizer, "chat"), CHATS[1][:-1], "Hi.")
    with pytest.raises(ModelError, match="needs a chat template"):
        all_answers(Formatter(policy.tokenizer, "raw"), CHATS[1][:-1], "Hi.")

"""TRL's side of a comparison: its GRPOTrainer step by step: ``-m scripts.bench._trl CASE MODEL SCRATCH STEPS``.

What would slow TRL down without being part of the work is off: gradient checkpointing (its default), completion
logging, evaluation and saving; mixed precision, its default, is on in the bfloat16 case only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList, TrainerCallback
from trl.chat_template_utils import parse_response
from trl.trainer import grpo_trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from scripts.bench._work import (
    BUDGET,
    LEARNING_RATE,
    WARM_UP,
    WARM_UP_TOKENS,
    Gate,
    ToolWork,
    Work,
    is_call,
    search,
    variety,
    work_of,
)

QUIET: dict[str, Any] = {
    "use_cpu": not torch.cuda.is_available(),
    "lr_scheduler_type": "constant",
    "logging_strategy": "no",
    "save_strategy": "no",
    "eval_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "seed": 0,
}
"""What would slow a trainer of TRL down without being part of the work is off."""


class Lengths(LogitsProcessor):
    """Ends every row after the given number of tokens, the end itself included."""

    def __init__(self, lengths: list[int], end: int) -> None:
        self.table = torch.tensor(lengths)
        self.end, self.start = end, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        self.start = self.start or input_ids.shape[1]
        now = self.table == input_ids.shape[1] - self.start + 1
        scores[:, self.end] = -torch.inf
        scores[now] = -torch.inf
        scores[now, self.end] = 0.0
        return scores


class Timed(GRPOTrainer):
    """Notes how long generation and scoring take, counts the policy's tokens, and gives rows or turns their lengths."""

    rollout_seconds = 0.0
    tokens = 0
    calls = 0
    turns: Sequence[Sequence[int]] = ()
    """Tokens of each turn of each row; a completion is one turn."""
    warm_up: Sequence[int] = ()

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        start = time.perf_counter()
        table = self.turns if self.calls else [self.warm_up] * len(self.turns)
        self.calls += 1
        model = cast(Any, self.accelerator.unwrap_model(self.model))
        tokenizer = cast(Any, self.processing_class)
        generate, turn = model.generate, iter(range(99))

        def one_turn(*args: Any, **options: Any) -> Any:
            n = next(turn)
            ends = Lengths([row[n] for row in table if len(row) > n], tokenizer.eos_token_id)
            return generate(*args, logits_processor=LogitsProcessorList([ends]), **options)

        model.generate = one_turn
        try:
            out = super()._generate_and_score_completions(inputs)
        finally:
            model.generate = generate
        self.rollout_seconds += time.perf_counter() - start
        written = out.get("tool_mask")
        self.tokens += int((out["completion_mask"] * (1 if written is None else written)).sum())
        return out


class Steps(TrainerCallback):
    """Hands every finished step to the gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seconds, tokens = self.trainer.rollout_seconds, self.trainer.tokens
        self.trainer.rollout_seconds, self.trainer.tokens = 0.0, 0
        whole = time.perf_counter() - self.gate.started
        parts = {"rollout": seconds, "update": whole - seconds}
        self.gate.step_done(parts=parts, tokens_generated=tokens, tokens_trained=tokens)


class Book:
    def reset(self, **_: Any) -> None:
        """Nothing is added to the prompt."""

    def search(self, query: str) -> str:
        """
        Searches a book of facts.

        Args:
            query: What to look for.

        Returns:
            The line of the book that fits best.
        """
        return search(query)


def parse(tokenizer: Any, ids: Sequence[int], **options: Any) -> dict[str, Any]:
    """What TRL's own parser does, and then the case's rule."""
    try:
        message = parse_response(tokenizer, list(ids), **options)
    except ValueError:  # random text may be no turn
        message = {}
    text = str(message.get("content") or "")
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "clips"}}}
    return {"role": "assistant", "content": text, **({"tool_calls": [call]} if is_call(len(ids)) else {})}


def config_of(work: Work | ToolWork, folder: str, steps: int) -> GRPOConfig:
    plain = isinstance(work, Work)
    return GRPOConfig(
        output_dir=folder,
        bf16=plain and work.dtype == "bfloat16",
        gradient_checkpointing=plain and "trl" in work.checkpointed,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=work.micro_batch,
        gradient_accumulation_steps=work.rows // work.micro_batch,
        num_generations=work.group,
        max_completion_length=work.longest if plain else BUDGET,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        beta=0.0,
        learning_rate=LEARNING_RATE,
        max_steps=steps,
        max_grad_norm=1.0,
        shuffle_dataset=plain,
        **QUIET,
    )


def completion_trainer(work: Work, model: str, config: GRPOConfig, callbacks: Sequence[Any]) -> Timed:
    def reward(completions: list[str], **_: Any) -> list[float | None]:
        return [variety(c) for c in completions]

    lora = LoraConfig(r=work.lora_r, lora_alpha=2 * work.lora_r, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = Timed(
        model=model,
        reward_funcs=reward,
        args=config,
        callbacks=list(callbacks),
        train_dataset=Dataset.from_list([{"prompt": p} for p in work.prompts]),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=lora if work.lora_r else None,
    )
    trainer.turns, trainer.warm_up = [[n] for n in work.lengths()], [WARM_UP_TOKENS]
    return trainer


def tool_trainer(work: ToolWork, model: str, folder: str, steps: int, callbacks: Sequence[Any] = ()) -> Timed:
    def reward(completions: list[list[dict[str, str]]], **_: Any) -> list[float | None]:
        return [variety(c[-1]["content"]) for c in completions]

    grpo_trainer.parse_response = parse  # pyright: ignore[reportPrivateImportUsage]
    trainer = Timed(
        model=model,
        reward_funcs=reward,
        args=config_of(work, folder, steps),
        callbacks=list(callbacks),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": p}]} for p in work.prompts]),
        processing_class=AutoTokenizer.from_pretrained(model),
        environment_factory=Book,
    )
    trainer.turns, trainer.warm_up = work.lengths(), WARM_UP
    return trainer


def main() -> None:
    work, model, folder, steps = work_of(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    timer = Steps(Gate())
    if isinstance(work, ToolWork):
        timer.trainer = tool_trainer(work, model, folder, steps, [timer])
    else:
        timer.trainer = completion_trainer(work, model, config_of(work, folder, steps), [timer])
    timer.trainer.train()


if __name__ == "__main__":
    main()

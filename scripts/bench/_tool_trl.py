"""TRL's side: its GRPOTrainer with an environment, whose tool loop plays the episodes.

    python -m scripts.bench._tool_trl CASE MODEL_FOLDER SCRATCH_FOLDER STEPS

As in ``_grpo_trl.py`` nothing is on that would slow TRL down without being part of the work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from datasets import Dataset
from transformers import AutoTokenizer, LogitsProcessorList
from trl.chat_template_utils import parse_response
from trl.trainer import grpo_trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from scripts.bench._grpo_trl import Lengths, Steps
from scripts.bench._grpo_work import LEARNING_RATE, Gate, variety
from scripts.bench._tool_work import BUDGET, CASES, WARM_UP, ToolWork, is_call, search


class Book:
    """The environment: one tool."""

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


class Timed(GRPOTrainer):
    """Notes how long generation and scoring take, counts the policy's tokens, and gives turns their lengths."""

    rollout_seconds = 0.0
    tokens = 0
    calls = 0
    lengths: Sequence[Sequence[int]] = ()

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        start = time.perf_counter()
        table = self.lengths if self.calls else [WARM_UP] * len(self.lengths)
        self.calls += 1
        model, tokenizer = self.accelerator.unwrap_model(self.model), cast(Any, self.processing_class)
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
        self.tokens += int((out["completion_mask"] * out["tool_mask"]).sum())
        return out


def config_of(work: ToolWork, folder: str, steps: int) -> GRPOConfig:
    """TRL's settings."""
    return GRPOConfig(
        output_dir=folder,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=work.micro_batch,
        gradient_accumulation_steps=work.rows // work.micro_batch,
        num_generations=work.group,
        max_completion_length=BUDGET,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        beta=0.0,
        learning_rate=LEARNING_RATE,
        max_steps=steps,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        shuffle_dataset=False,
        seed=0,
    )


def trainer_of(work: ToolWork, model: str, folder: str, steps: int, callbacks: Sequence[Any] = ()) -> Timed:
    """TRL's trainer, ready to train."""

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
    trainer.lengths = work.lengths()
    return trainer


def main() -> None:
    """Run until told to stop."""
    work, model, folder, steps = CASES[sys.argv[1]], sys.argv[2], sys.argv[3], int(sys.argv[4])
    timer = Steps(Gate())
    timer.trainer = trainer_of(work, model, folder, steps, [timer])
    timer.trainer.train()


if __name__ == "__main__":
    main()

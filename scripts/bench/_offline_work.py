"""A side of ``offline_trainers``: ``-m scripts.bench._offline_work ours|trl CASE MODEL OPTIONS FOLDER``.

Every update learns the same 24 human pairs (of sft the preferred answers), of at most 256 tokens a side.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.bench._work import LEARNING_RATE, Gate

PAIRS, MOST_TOKENS, STEPS = 24, 256, 20
IGNORED = -100
"""A label that the loss leaves out."""
PADDED = {f"micro-batch of {n}": {"per_device_train_batch_size": n} for n in (4, 8)}
LIKE = {"train_sampling_strategy": "group_by_length"}
FREE = {"per_device_train_batch_size": 8, "padding_free": True, "max_length": None}
TRIED: dict[str, dict[str, dict[str, Any]]] = {
    "sft": {
        **PADDED,
        "micro-batch of 4, rows of like length": {"per_device_train_batch_size": 4, **LIKE},
        "padding-free, micro-batch of 8": FREE,
        "padding-free, micro-batch of 8, chunked loss": {**FREE, "loss_type": "chunked_nll"},
        "all in one packed row": {"per_device_train_batch_size": PAIRS, "packing": True, "max_length": 8192},
        "micro-batch of 8, chunked loss": {"per_device_train_batch_size": 8, "loss_type": "chunked_nll"},
    },
    "dpo": {"micro-batch of 2": {"per_device_train_batch_size": 2}, **PADDED},
    "reward_model": {"micro-batch of 2": {"per_device_train_batch_size": 2}, **PADDED},
}
"""TRL's settings by what a record calls them. Its DPO and reward model have neither packing nor padding-free."""


def pairs(tokenizer: Any) -> list[dict[str, Any]]:
    """Conversations as lists of turns, each with a better and a worse answer."""
    from rlhf_core.data import read_rows
    from rlhf_core.data.conversations import read_pair

    data = os.environ.get("RLHF_TEST_DATA")
    if not data:
        raise SystemExit("set RLHF_TEST_DATA to the folder that has hh_rlhf/pairs.jsonl.gz")
    path = str(Path(data) / "hh_rlhf" / "pairs.jsonl.gz")
    reader, records = read_rows(path).records(path)
    rows: list[dict[str, Any]] = []
    for record in records:
        prompt, chosen, rejected = read_pair(reader, record)
        turns = [dict(turn) for turn in prompt]
        longest = max(
            len(tokenizer.apply_chat_template([*turns, answer(s.text)])["input_ids"]) for s in (chosen, rejected)
        )
        if longest <= MOST_TOKENS and chosen.text.strip() and rejected.text.strip() and chosen.text != rejected.text:
            rows.append({"prompt": turns, "chosen": chosen.text, "rejected": rejected.text})
        if len(rows) == PAIRS:
            break
    return rows


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def ours(case: str, model: str, folder: Path, gate: Gate, options: Mapping[str, Any]) -> None:
    """``rlhf train`` itself, with the other side's micro-batch; ``options`` may have ``gradient_checkpointing``."""
    from transformers import AutoTokenizer

    from rlhf_core.config.load import resolve
    from rlhf_core.plugins.hooks import load_hooks
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.runs.launch.run import plan_run, preflight, run_plan
    from rlhf_core.runs.work import Display

    rows = pairs(AutoTokenizer.from_pretrained(model))
    if case == "sft":
        rows = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in rows]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = [
        f"trainer.name={case}",
        f"model.path={model}",
        f"model.gradient_checkpointing={options.get('gradient_checkpointing', 'false')}",
        f"dataset={{name: jsonl, path: {folder / 'rows.jsonl'}, heldout_fraction: 0}}",
        f"trainer.batch_size={PAIRS}",
        f"trainer.micro_batch_size={options['per_device_train_batch_size']}",
        f"trainer.epochs={STEPS}",
        f"trainer.optimizer={{learning_rate: {LEARNING_RATE}, warmup_steps: 0, schedule: constant}}",
        "trainer.eval_every=0",
        "trainer.checkpoint_every=0",
        *(["trainer.sample_prompts=0"] if case != "reward_model" else []),
    ]

    def progress(step: int, total: int | None, row: Mapping[str, float]) -> None:
        done(gate, row["train/tokens"], PAIRS if case == "sft" else 2 * PAIRS)

    registry, hooks = Registry(), load_hooks()
    config = resolve(registry, settings=settings)
    plan = plan_run(registry, hooks, config, 1)
    preflight(registry, config, 1)
    run_plan(plan, config, registry, hooks, folder / "run", resume=False, display=Display(progress=progress))


def done(gate: Gate, tokens: float, sequences: int) -> None:
    """Report an update."""
    parts = {"update": time.perf_counter() - gate.started}
    gate.step_done(parts=parts, tokens_generated=0, tokens_trained=int(tokens), sequences=sequences)


def trl(case: str, model: str, folder: Path, gate: Gate, options: Mapping[str, Any]) -> None:
    """TRL's trainer of the case."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.reward_config import RewardConfig
    from trl.trainer.reward_trainer import RewardTrainer
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from scripts.bench._trl import QUIET

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    rows = [
        {"prompt": row["prompt"], "chosen": [answer(row["chosen"])], "rejected": [answer(row["rejected"])]}
        for row in pairs(tokenizer)
    ]
    if case == "sft":
        rows = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in rows]
    kinds: dict[str, tuple[Any, Any]] = {
        "sft": (SFTConfig, SFTTrainer),
        "dpo": (DPOConfig, DPOTrainer),
        "reward_model": (RewardConfig, RewardTrainer),
    }
    config_class, trainer_class = kinds[case]
    given = {"max_length": 1024, "per_device_train_batch_size": 4, **options}
    config = config_class(
        output_dir=str(folder),
        bf16=False,
        gradient_checkpointing=False,
        gradient_accumulation_steps=PAIRS // given["per_device_train_batch_size"],
        learning_rate=LEARNING_RATE,
        num_train_epochs=STEPS,
        **QUIET,
        **given,
    )
    auto = AutoModelForSequenceClassification if case == "reward_model" else AutoModelForCausalLM
    loaded: Any = auto.from_pretrained(
        model, dtype=torch.float32, **({"num_labels": 1} if auto is not AutoModelForCausalLM else {})
    )

    class Steps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            done(gate, tokens, PAIRS if case == "sft" else 2 * PAIRS)

    trainer = trainer_class(
        model=loaded,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Steps()],
    )
    tokens = learned(case, trainer.train_dataset)
    trainer.train()


def learned(case: str, rows: Any) -> int:
    """Tokens of a prepared dataset that the loss counts; of a reward model all tokens."""
    if case == "sft":
        return sum(label != IGNORED for row in rows for label in row["labels"])
    return sum(len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in rows)


def main() -> None:
    name, case, model, options, folder = *sys.argv[1:5], Path(sys.argv[5])
    gate = Gate()
    if name == "ours":
        ours(case, model, folder, gate, json.loads(options))
    else:
        trl(case, model, folder, gate, json.loads(options))


if __name__ == "__main__":
    main()

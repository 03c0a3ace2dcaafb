"""A folder with the files and models that the commands of the documentation name, so that they can be executed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlhf_plugin_pocket import weights_path
from tests.docs.blocks import ROOT

WEIGHTS = weights_path()
POLICIES = ("my-model", "M", "MODEL", "trunk", "runs/sft/final")
REWARD_MODELS = ("RM", "runs/rm/final", "runs/other_reward_model/final", "A/final", "B/final", "REWARD")
CALLING = [
    {"role": "user", "content": "What is the age of Nelo Gusil?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "search", "arguments": {"query": "age of Nelo Gusil"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "name": "search", "content": "41"},
    {"role": "assistant", "content": "The answer is 41."},
]
SUMS = [(a, b) for a in range(1, 9) for b in range(1, 9)]


def write_inputs(folder: Path) -> None:
    """Write every file that a command may read; models are the built-in one, reward models have an untrained head."""
    (folder / "configs").symlink_to(ROOT / "configs")
    for name in POLICIES:
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(WEIGHTS)
    (folder / "my_tools.py").write_text('def add(a: int, b: int) -> int:\n    """Adds."""\n    return a + b\n')
    write_tables(folder, tables())
    write_sounds(folder)
    (folder / "recipe.yaml").write_text("learning_rate: 1.0e-6\nnum_generations: 8\nbeta: 0.0\n")
    verl = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.optim.lr=1e-6"
    (folder / "run_grpo.sh").write_text(f"{verl}\n")
    (folder / "mine.yaml").write_text("trainer:\n  steps: 3\n")


def write_sounds(folder: Path) -> None:
    """Clips of a voice with more and more noise, with ratings, and in pairs."""
    import numpy as np
    import soundfile

    time = np.arange(8000) / 16000
    phase = 2 * np.pi * np.cumsum(150 + 20 * np.sin(9 * time)) / 16000
    voice = sum(np.sin(k * phase) / k for k in range(1, 9)) * (0.1 + np.square(np.sin(np.pi * 4 * time)))
    (folder / "clips").mkdir()
    for i in range(12):
        noise = np.random.default_rng(i).standard_normal(8000)
        soundfile.write(folder / "clips" / f"{i}.flac", 0.1 * voice + 0.002 * 1.4**i * noise, 16000)
    soundfile.write(folder / "clip.flac", 0.1 * voice, 16000)
    clips = [{"prompt": "Hello there.", "audio": f"clips/{i}.flac", "mos": 5 - i / 4} for i in range(12)]
    pairs = [
        {"prompt": "Hello there.", "chosen_audio": f"clips/{i}.flac", "rejected_audio": f"clips/{i + 6}.flac"}
        for i in range(6)
    ]
    for name, rows in {"rated.jsonl": clips, "clips.jsonl": clips, "clip-pairs.jsonl": pairs}.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tables(folder: Path, named: Mapping[str, Iterable[dict[str, Any]]]) -> None:
    """Each table as JSON lines, plain and compressed."""
    for name, rows in named.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name).write_text(text)
        with gzip.open(folder / f"{name}.gz", "wt") as file:
            file.write(text)


def reward_models(folder: Path) -> None:
    """One-label classifiers where the commands look for trained reward models."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(WEIGHTS, num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    model.config.pad_token_id = tokenizer.pad_token_id
    first = folder / REWARD_MODELS[0]
    model.save_pretrained(first)
    tokenizer.save_pretrained(first)
    for name in REWARD_MODELS[1:]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            (folder / name).symlink_to(first)


def tables() -> dict[str, Iterable[dict[str, Any]]]:
    """File name -> rows."""
    ask = [f"What is {a} + {b}?" for a, b in SUMS]
    right = [f"The answer is {a + b}." for a, b in SUMS]
    padded = [f"Absolutely! {text} It is always good to know such things." for text in right]
    train, test = (
        [
            {
                "question": f"What is {a} + {c}?",
                "answer": f"It is {a + c}.\n#### {a + c}",
                "level": 3,
                "subject": "sums",
            }
            for a, b in SUMS
            for c in [b + more]
        ]
        for more in (0, 10)
    )
    scored = [
        {"prompt": q, "completion": text, "scores": {"taste": len(text) / 40, "rules": float(i)}, "gold": float(i)}
        for q, *both in zip(ask, padded, right)
        for i, text in enumerate(both)
    ]
    ifeval = {
        "key": 1,
        "prompt": "Answer without a comma.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    }
    mbpp = {
        "task_id": 1,
        "prompt": "Write f.",
        "code": "def f(): return 1",
        "test_list": ["assert f() == 1"],
        "test_imports": [],
    }
    return {
        "demos.jsonl": [{"prompt": q, "completion": text} for q, text in zip(ask, right)],
        "chats.jsonl": [
            {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": text}]}
            for q, text in zip(ask, right)
        ],
        "agentic.jsonl": [{"messages": CALLING}],
        "pairs.jsonl": [
            {"prompt": q, "chosen": c, "rejected": r, "answer": str(a + b)}
            for q, c, r, (a, b) in zip(ask, right, padded, SUMS)
        ],
        "prompts.jsonl": [{"prompt": q, "answer": str(a + b)} for q, (a, b) in zip(ask, SUMS)],
        "answers.jsonl": [
            {"prompt": q, "completion": text, "answer": str(a + b), "gold": float(i)}
            for q, (a, b), *both in zip(ask, SUMS, padded, right)
            for i, text in enumerate(both)
        ],
        "labels.jsonl": [
            {"prompt": q, "completion": c, "label": i % 2 == 0} for i, (q, c) in enumerate(zip(ask, right))
        ],
        "scored.jsonl": scored,
        "graded.jsonl": [
            {"prompt": q, "completion": c, "grades": dict.fromkeys(CRITERIA, 1 + i % 5)}
            for i, (q, c) in enumerate(zip(ask, right))
        ],
        "train.jsonl": train,
        "test.jsonl": test,
        "rlvr.jsonl": [
            {"messages": [{"role": "user", "content": q}], "ground_truth": str(a + b), "dataset": "gsm8k"}
            for q, (a, b) in zip(ask, SUMS)
        ],
        "passes.jsonl": [{"id": str(i), "pass_rate": 0.5} for i in range(8)],
        "input_data.jsonl": [ifeval],
        "mbpp.jsonl": [{**mbpp, "task_id": i, "prompt": f"Write f, version {i}."} for i in range(40)],
    }


CRITERIA = ("helpfulness", "honesty", "harmlessness", "conciseness", "specificity")

"""Whole runs of the pocket model: what is learned, kept and refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_plugin_pocket import weights_path

Command = Callable[..., tuple[int, str]]
PAIRS = [
    {
        "id": str(n),
        "prompt": f"What pet does {who} have?",
        "chosen": f"{who} has a {pet}.",
        "rejected": f"Absolutely! I guess {who} has a {other}.",
    }
    for n, (who, pet, other) in enumerate(
        [("Ada", "parrot", "cat"), ("Bruno", "goat", "dog"), ("Clara", "turtle", "pony"), ("Dario", "cat", "rabbit")]
        * 6
    )
]
SMALL = (
    "threads=1",
    "trainer.batch_size=8",
    "trainer.eval_every=0",
    "trainer.eval_samples=4",
    "trainer.sample_prompts=2",
    "dataset.heldout_fraction=0.25",
    "dataset.heldout_by=place",
    "trainer.checkpoint_every=1",
    "trainer.keep_checkpoints=9",
)
LOOP = (
    "threads=1",
    "dataset.limit=64",
    "trainer.rollout_batch_size=32",
    "trainer.steps=2",
    "trainer.rollout_batches=2",
    "trainer.updates=2",
    "trainer.pair_batch_size=4",
    "trainer.eval_samples=2",
    "trainer.gold_samples=2",
    "trainer.checkpoint_every=1",
    "trainer.keep_checkpoints=99",
    "trainer.sampling.max_tokens=12",
)
STREAMS = ("metrics", "trace")


def settings(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


class Ran:
    """What a run left."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.summary = folder, json.loads((folder / "summary.json").read_text())
        self.rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
        self.steps = [r for r in self.rows if "grad_norm" in r]
        self.final = load_file(str(folder / "final" / "model.safetensors"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "owners.jsonl"  # the name is part of the ids, by whose hash rows are held out
    file.write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra", [(), pytest.param(("model.lora.r=4", "loss.name=aot", "trainer.sft.weight=0.5"), marks=pytest.mark.slow)]
)
def test_dpo_learns(extra: tuple[str, ...], command: Command, tmp_path: Path, data: Path) -> None:
    run = tmp_path / "run"
    code, err = command(
        "train",
        "--algo",
        "dpo",
        "--dataset",
        data,
        "--run-dir",
        run,
        *settings(*SMALL, "trainer.optimizer.learning_rate=1e-3", "trainer.epochs=2", "trainer.eval_samples=2", *extra),
    )
    assert code == 0, err
    uninterrupted = Ran(run)
    first, last = uninterrupted.steps[0], uninterrupted.steps[-1]
    assert "loss.name=aot" in extra or first["loss"] == pytest.approx(0.6931, abs=1e-4), "policy is the reference"
    assert abs(first["rewards/chosen"]) < 1e-4
    assert first["accuracy"] == 0.5, "nothing is preferred yet, whatever the rounding, and whoever is compared"
    assert last["accuracy"] > 0.9
    assert last["loss"] < first["loss"]
    assert (
        uninterrupted.summary["evaluation_before"]["eval/kl"]
        < 1e-6
        < uninterrupted.summary["evaluation_after"]["eval/kl"]
    )
    cached_files = sorted((run / "reference").rglob("*.safetensors"))
    assert [len(load_file(str(f))["logprobs"]) for f in cached_files] == [4, 42], "2 held-out pairs and 21 others"


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["sigmoid", pytest.param("aot_unpaired", marks=pytest.mark.long)])
def test_the_update_does_not_depend_on_the_micro_batch_size(
    loss: str, command: Command, tmp_path: Path, data: Path
) -> None:
    runs = []
    for size in (3, 8):
        code, err = command(
            "train",
            "--algo",
            "dpo",
            "--loss",
            loss,
            "--dataset",
            data,
            "--run-dir",
            tmp_path / str(size),
            *settings(
                *SMALL,
                "trainer.max_steps=2",
                "trainer.sft.weight=0.3",
                "trainer.optimizer.eps=1e-3",
                "trainer.ld_alpha=0.5",
                f"trainer.micro_batch_size={size}",
            ),
        )
        assert code == 0, err
        runs.append(Ran(tmp_path / str(size)))
        (cached_file,) = (tmp_path / str(size) / "reference").glob("train-*/logprobs.safetensors")
        assert len(load_file(str(cached_file))["logprobs"]) < 42, "two steps do not look at all 21 pairs"
    assert runs[0].steps[1]["grad_norm"] == pytest.approx(runs[1].steps[1]["grad_norm"], rel=1e-4)
    assert max(float((runs[0].final[k] - runs[1].final[k]).abs().max()) for k in runs[0].final) < 1e-6


@pytest.mark.slow
def test_kto_learns_from_labels(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "judged.jsonl"
    rows = [
        {
            "id": f"{r['id']}{label}",
            "prompt": r["prompt"],
            "completion": r["chosen" if label else "rejected"],
            "label": label,
        }
        for n, r in enumerate(PAIRS)
        for label in ((True, False) if n % 2 else (True,))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, err = command(
        "train",
        "--algo",
        "kto",
        "--dataset",
        file,
        "--run-dir",
        tmp_path / "run",
        *settings(*SMALL, "trainer.optimizer.learning_rate=1e-3", "trainer.epochs=3"),
    )
    assert code == 0, err
    uninterrupted = Ran(tmp_path / "run")
    assert uninterrupted.steps[0]["kl"] == pytest.approx(0, abs=1e-4)
    assert max(r["kl"] for r in uninterrupted.steps) > 1e-3, (
        "most responses, and so most mismatched responses, become likelier"
    )
    last = [r for r in uninterrupted.steps if {"rewards/chosen", "rewards/rejected"} <= r.keys()][-1]
    assert last["rewards/chosen"] > 0.05 > last["rewards/rejected"] + 0.05


@pytest.mark.slow
def test_iterative_dpo_alternates_rollout_batches_and_updates(command: Command, tmp_path: Path) -> None:
    """Steps 1 and 2 of an iteration are rollout batches, 3 and 4 updates."""
    code, err = command(
        "train",
        "--algo",
        "iterative_dpo",
        "--reward",
        "verifier",
        "--dataset",
        "pocket/arithmetic",
        "--run-dir",
        tmp_path / "run",
        *settings(
            *LOOP,
            "trainer.buffer=rolling",
            "reward.workers=1",
            "trainer.kl.sync_every=1",
            "trainer.optimizer.learning_rate=1e-2",
            "trainer.optimizer.warmup_steps=0",
        ),
    )
    assert code == 0, err
    uninterrupted = Ran(tmp_path / "run")
    assert uninterrupted.summary["steps"] == 8
    assert uninterrupted.summary["updates"] == 4
    rows = uninterrupted.summary["iterations"]
    assert [r["iteration"] for r in rows] == [1.0, 2.0]
    assert rows[0]["buffer"] == rows[0]["pairs"] > 0
    assert rows[1]["buffer"] == rows[0]["pairs"] + rows[1]["pairs"]
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert "old_margin" not in rows[0], "the buffer has no pairs of earlier iterations"
    assert rows[1]["old_margin"] > 1e-3, "the policy has moved from the reference that these pairs were renewed with"
    counted = uninterrupted.summary["dropped"].get("pairs_tied", 0)
    assert rows[0]["pairs"] + rows[1]["pairs"] + counted == 16, "8 prompts an iteration, a pair or a tie each"
    assert abs(uninterrupted.steps[1]["loss"] - 0.6931) > 1e-3, "the policy moves"
    for update in (0, 2):
        assert uninterrupted.steps[update]["loss"] == pytest.approx(0.6931, abs=1e-4), (
            "policy and reference are one again"
        )


REFUSED = [
    ("dpo", ("loss.name=apo_zero", "trainer.reference_free=true"), "needs the reference policy"),
    ("dpo", ("loss.name=simpo", "trainer.reference_free=true"), "never looks at a reference"),
    ("dpo", ("trainer.sft.on=conversation",), "trainer.sft.weight is 0"),
    ("dpo", ("trainer.beta_schedule.kind=linear",), "do nothing together"),
    ("dpo", ("loss.name=kto",), "consumes unpaired"),
    ("kto", ("trainer.reference_free=true",), "needs the reference policy"),
    ("kto", ("trainer.ld_alpha=0.5",), "has no effect"),
    ("iterative_dpo", ("trainer.group_size=1",), "group_size"),
    ("iterative_dpo", ("trainer.kl.coefficient=0.1",), "loss.beta"),
    ("iterative_dpo", ("trainer.target_kl=0.1",), "target_kl has no effect"),
    ("iterative_dpo", ("trainer.buffer_iterations=4",), "no effect with buffer current"),
    ("iterative_dpo", ("trainer.sampling.temperature=0",), "temperature 0"),
    ("iterative_dpo", ("trainer.kl.track=false",), "no reference policy"),
]


@pytest.mark.parametrize(("algo", "bad", "words"), REFUSED, ids=[f"{a}-{b[0]}" for a, b, _ in REFUSED])
def test_what_cannot_work_is_refused(
    algo: str, bad: tuple[str, ...], words: str, command: Command, tmp_path: Path
) -> None:
    code, err = command("train", "--algo", algo, "--run-dir", tmp_path / "run", *settings(*bad))
    assert code == 2
    assert words in " ".join(err.split())
    assert not (tmp_path / "run").exists()


BAD_ROWS = [
    ("dpo", {"prompt": "Hi?", "chosen": "Yes.", "rejected": "Yes."}, "the same"),
    ("dpo", {"prompt": "Hi?", "chosen": "  ", "rejected": "No."}, "empty"),
    (
        "dpo",
        {
            "chosen": [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "Yes."}],
            "rejected": [{"role": "user", "content": "B?"}, {"role": "assistant", "content": "No."}],
        },
        "differ before",
    ),
    (
        "dpo",
        {
            "prompt": "C?",
            "chosen": [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "Yes."}],
            "rejected": [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "No."}],
        },
        "the prompt column is not a turn",
    ),
    ("kto", {"prompt": "Hi?", "completion": "Yes.", "label": True}, "desirable"),
    ("kto", {"prompt": "Hi?", "completion": "Yes.", "label": "maybe"}, "neither true nor false"),
    ("kto", {"prompt": "Hi?", "completion": "", "label": True}, "empty"),
]


@pytest.mark.parametrize(("algo", "row", "words"), BAD_ROWS, ids=[f"{a}-{s}" for a, _, s in BAD_ROWS])
def test_bad_rows_are_refused_before_the_model_is_loaded(
    algo: str, row: dict[str, Any], words: str, command: Command, tmp_path: Path
) -> None:
    broken = tmp_path / "broken-model"
    shutil.copytree(weights_path(), broken)
    save_file({"another": torch.zeros(1)}, broken / "model.safetensors")
    file = tmp_path / "bad.jsonl"
    file.write_text("".join(json.dumps({**row, "id": str(n)}) + "\n" for n in range(4)))
    code, err = command(
        "train",
        "--algo",
        algo,
        "--dataset",
        file,
        "--model",
        broken,
        "--run-dir",
        tmp_path / "run",
        "--set",
        "dataset.heldout_fraction=0",
    )
    assert code == 2
    assert words in " ".join(err.split())
    assert not (tmp_path / "run").exists()

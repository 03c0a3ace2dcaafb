"""Imitation: which tokens count, what is left out, and what a trained model then says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_core.cli.main import main
from rlhf_core.models import Formatter, ModelConfig, load_policy
from rlhf_core.training import PolicyModule, TrainingSample
from rlhf_plugin_sft.loss import CrossEntropy

ROWS = [
    {"prompt": f"What pet does {name} have?", "completion": f"{name} works as a {pet}."}
    for name, pet in (("Ada", "parrot"), ("Bruno", "goat"), ("Clara", "turtle"), ("Dario", "cat"))
] * 8
"""Nonsense in words that the pocket model knows: adapters leave the embedding alone, and the rows of words that its
training never showed are all but equal there, so no adapter can tell them apart."""


def test_loss_is_that_of_transformers_on_completion_labels() -> None:
    policy = load_policy(ModelConfig())
    formatter = Formatter(policy.tokenizer, "chat")
    prompt = formatter.encode([{"role": "user", "content": "What is the pet of Ann?"}])
    completion = formatter.encode_completion("The pet of Ann is a cat.")
    count = len(completion)
    item = TrainingSample(
        "a", prompt, completion, torch.ones(count, dtype=torch.bool).numpy(), torch.ones(count).numpy()
    )
    short = TrainingSample("b", prompt, completion[-2:], item.mask_T[:2], item.advantages_T[:2])
    batch = PolicyModule(policy.model)([item, short])
    loss_BT = CrossEntropy()(batch).loss
    ids = torch.tensor([[*prompt, *completion]])
    labels = torch.tensor([[-100] * len(prompt) + list(completion)])
    with torch.inference_mode():
        expected = policy.model(input_ids=ids, labels=labels).loss
    assert float(loss_BT[0][batch.mask_BT[0]].mean().detach()) == pytest.approx(float(expected), abs=1e-4)
    assert int(batch.mask_BT.sum()) == count + 2, "prompts and padding are not learned"


def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, str]], *settings: str) -> Any:
    data, run = tmp_path / "data.jsonl", tmp_path / "run"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "home"))
    sets = [
        part
        for s in ("threads=1", "trainer.batch_size=16", "trainer.micro_batch_size=8", *settings)
        for part in ("--set", s)
    ]
    with pytest.raises(SystemExit) as caught:
        main(["train", "--algo", "sft", "--dataset", str(data), "--run-dir", str(run), *sets])
    assert caught.value.code == 0
    return json.loads((run / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_it_learns_to_say_what_was_demonstrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: bool) -> None:
    extra = (
        ("model.lora.r=16", "trainer.optimizer.learning_rate=5e-3")
        if lora
        else ("trainer.optimizer.learning_rate=1e-3",)
    )
    summary = train(tmp_path, monkeypatch, ROWS, "trainer.epochs=20", "trainer.optimizer.warmup_steps=2", *extra)
    assert summary["status"] == "completed"
    assert summary["loss_first"] > 0.5, "there was something to learn"
    assert summary["loss_last"] < 0.05
    final = tmp_path / "run" / summary["final_model"]
    tokenizer, model = AutoTokenizer.from_pretrained(final), AutoModelForCausalLM.from_pretrained(final)
    for row in ROWS[:4]:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        out = model.generate(**ids, max_new_tokens=16, do_sample=False)[0, ids["input_ids"].shape[1] :]
        assert tokenizer.decode(out, skip_special_tokens=True).strip() == row["completion"]
        assert out[-1] == tokenizer.eos_token_id, "it also learned where to stop"


@pytest.mark.parametrize(("count", "epochs", "batches"), [(20, 2, [16, 16, 8]), (6, 1, [6])])
def test_an_epoch_shows_every_example_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, count: int, epochs: int, batches: list[int]
) -> None:
    rows = [{"id": str(i), **row} for i, row in enumerate(ROWS[:count])]
    train(tmp_path, monkeypatch, rows, f"trainer.epochs={epochs}", "dataset.heldout_fraction=0")
    trace = [json.loads(line) for line in (tmp_path / "run" / "trace.jsonl").read_text().splitlines()]
    shown = [row["examples"] for row in trace if row.get("event") == "update"]
    assert [len(names) for names in shown] == batches
    assert set(Counter(name for names in shown for name in names).values()) == {epochs}
    assert f"step {len(batches)}/{len(batches)}" in capsys.readouterr().err


def test_examples_over_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*ROWS, {"prompt": "Say it all.", "completion": "word " * 200}]
    summary = train(tmp_path, monkeypatch, rows, "trainer.max_length=64", "trainer.max_steps=1")
    assert summary["dropped"]["examples_too_long"] == 1


def test_too_many_examples_over_the_limit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.jsonl"
    rows = [*ROWS[:8], *({"prompt": f"Say it {i} times.", "completion": "word " * 200} for i in range(4))]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SystemExit) as caught:
        main(
            [
                "train",
                "--algo",
                "sft",
                "--dataset",
                str(data),
                "--run-dir",
                str(tmp_path / "run"),
                "--set",
                "trainer.max_length=64",
                "--set",
                "trainer.max_steps=1",
                "--set",
                "dataset.heldout_fraction=0",
            ]
        )
    assert caught.value.code == 2
    err = capsys.readouterr().err
    for part in ("4 of 12 examples", "/data/000008 (417 tokens)", "trainer.max_length", "max_dropped_fraction"):
        assert part in err.replace("\n", " "), err


@pytest.mark.long
@pytest.mark.slow
def test_the_default_command_visibly_learns(command: Any, tmp_path: Path) -> None:
    code, err = command("train", "--algo", "sft", "--set", "trainer.eval_every=0", "--run-dir", tmp_path / "run")
    assert code == 0, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    before, after = (summary[f"evaluation_{when}"]["eval/loss"] for when in ("before", "after"))
    assert after < before / 3

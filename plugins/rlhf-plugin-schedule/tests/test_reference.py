"""Where the reference policy lies changes no number; what cannot be is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlhf_core
from rlhf_core.config import ConfigError
from rlhf_core.data import read_jsonl

ONLINE = {
    "rollout_batch_size": 16,
    "group_size": 4,
    "sampling": {"max_tokens": 8},
    "eval_samples": 0,
    "checkpoint_every": 0,
    "gold_samples": 0,
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 0},
    "kl": {"coefficient": 0.1},
}
OFFLINE = {"max_steps": 2, "batch_size": 8, "eval_samples": 8, "eval_every": 1, "sample_prompts": 4}
KEYS = ("kl", "loss", "eval/kl", "eval/loss")
Rows = list[dict[str, float]]


def run(folder: Path, reference: dict[str, str] | None, algo: str = "grpo", **trainer: Any) -> Any:
    online = algo != "dpo"
    names: dict[str, Any] = {"dataset": "pocket/arithmetic", "reward": "random"} if online else {}
    sizes = {**ONLINE, "steps": 3} if online else OFFLINE
    settings = {"trainer": {**sizes, **trainer, "reference": reference}, "threads": 1, "dataset.limit": 128}
    return rlhf_core.train(algo, **names, settings=settings, run_dir=folder, progress=False)


def train(folder: Path, *args: Any, **trainer: Any) -> Rows:
    run(folder, *args, **trainer)
    return rows(folder)


def rows(folder: Path) -> Rows:
    return [{key: row[key] for key in KEYS if key in row} for row in read_jsonl(folder / "metrics.jsonl")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", "offload"])
def test_on_policy_runs_are_equal_wherever_the_reference_lies(kind: str, tmp_path: Path) -> None:
    want = train(tmp_path / "want", None, kl={"coefficient": 0.1, "sync_every": 3}, steps=4)
    assert max(row.get("kl", 0.0) for row in want) > 1e-6
    assert train(tmp_path / kind, {"kind": kind}, kl={"coefficient": 0.1, "sync_every": 3}, steps=4) == want


@pytest.mark.slow
def test_bfloat16_rounds_the_reference_alone(tmp_path: Path) -> None:
    want, got = train(tmp_path / "want", None), train(tmp_path / "got", {"dtype": "bfloat16"})
    assert got != want
    for exact, rounded in zip(want, got, strict=True):
        assert rounded == pytest.approx(exact, abs=2e-3)
    assert train(tmp_path / "same", {"dtype": "float32"}) == want


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["grpo", "dpo"])
def test_a_reference_in_bfloat16_goes_with_mixed_precision(algo: str, tmp_path: Path) -> None:
    want = train(tmp_path / "want", None, algo)
    got = train(tmp_path / "got", {"dtype": "bfloat16"}, algo, precision="bf16")
    for exact, rounded in zip(want, got, strict=True):
        assert rounded == pytest.approx(exact, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("placed", [{"kind": "offload"}, {"kind": "whole", "dtype": "bfloat16"}])
def test_a_run_resumes_to_the_same_numbers(placed: dict[str, str], tmp_path: Path) -> None:
    more: dict[str, Any] = {"kl": {"coefficient": 0.1, "sync_every": 1}, "checkpoint_every": 1}
    want = train(tmp_path / "want", placed, steps=4, **more)
    run(tmp_path / "got", placed, steps=2, **more).resume(settings={"trainer.steps": 4})
    assert rows(tmp_path / "got")[-2:] == want[-2:]


@pytest.mark.slow
def test_pairs_are_compared_with_the_same_reference(tmp_path: Path) -> None:
    want = train(tmp_path / "want", None, "dpo")
    assert any("eval/kl" in row for row in want)
    for kind in ("whole", "offload"):
        assert train(tmp_path / kind, {"kind": kind}, "dpo") == want
    beforehand = train(tmp_path / "beforehand", {"kind": "precomputed"}, "dpo", track_kl=False)
    assert beforehand == [{key: value for key, value in row.items() if key != "eval/kl"} for row in want]
    rounded = train(tmp_path / "rounded", {"dtype": "bfloat16"}, "dpo")
    assert rounded != want
    for exact, other in zip(want, rounded, strict=True):
        assert other == pytest.approx(exact, abs=0.05)


@pytest.mark.parametrize(
    ("algo", "reference", "trainer", "words"),
    [
        ("grpo", {"kind": "precomputed"}, {}, "precomputed cannot be used with algorithm 'grpo'"),
        ("iterative_dpo", {"kind": "precomputed"}, {}, "precomputed cannot be used with algorithm 'iterative_dpo'"),
        ("grpo", {"kind": "sharded"}, {}, "sharded with one process"),
        ("grpo", {"kind": "whole"}, {"kl": {"track": False, "coefficient": 0}}, "keeps no reference policy"),
        ("dpo", {"kind": "precomputed"}, {}, "cannot measure the KL of samples"),
        ("dpo", {"kind": "whole"}, {"sample_prompts": 0}, "keeps no reference policy"),
    ],
)
def test_what_cannot_be_is_refused(
    algo: str, reference: dict[str, str], trainer: dict[str, Any], words: str, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"kl": {}} if algo == "iterative_dpo" else {}
    with pytest.raises(ConfigError, match=words):
        train(tmp_path / "run", reference, algo, **{**more, **trainer})
    assert not (tmp_path / "run").exists()


def test_adapters_have_no_copy_to_place(tmp_path: Path) -> None:
    settings = {"trainer.reference": {"kind": "offload"}, "model.lora": {"r": 2}}
    with pytest.raises(ConfigError, match=r"no effect with model\.lora"):
        rlhf_core.train(
            "grpo", dataset="pocket/arithmetic", reward="verifier", settings=settings, run_dir=tmp_path / "r"
        )


def test_ranks_that_divide_nothing_are_refused_before_a_model_is_loaded(
    command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    run = ("train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--nproc", "2")
    placed = ("--set", "strategy=ddp", "--set", "trainer.reference.kind=sharded", "--run-dir", tmp_path / "run")
    code, text = command(*run, *placed)
    assert code == 2
    assert "this strategy divides no weights" in text
    assert not (tmp_path / "run").exists()

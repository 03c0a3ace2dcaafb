"""Short runs of the algorithms on a card: against the same on the CPU, made twice, and killed and resumed.

The pocket model, four steps, float32 where the name does not say otherwise. ``first_step`` is of the step that both
make with the same weights; both sample the same tokens unless rounding decides. A killed run gets SIGKILL after two
steps; what a card adds in another order is no fault of resuming, so a second uninterrupted run is compared too.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from scripts.check.run_digests import digest_of
from scripts.faults import _process

ENSEMBLE = ("--reward", "ensemble", *(f"reward.{of}" for of in ("members=2", "max_pairs=64", "heldout_pairs=16")))
VERIFIER = ("--reward", "verifier", "--dataset", "pocket/arithmetic")
SHORT = ("trainer.eval_samples=8", "trainer.eval_every=2", "trainer.checkpoint_every=2")
ONLINE = ("trainer.steps=4", "trainer.gold_samples=0", "trainer.rollout_batch_size=64", *SHORT)
OFFLINE = ("trainer.max_steps=4", *SHORT)
CASES: Mapping[str, tuple[str, ...]] = {
    "grpo, ensemble": ("grpo", *ENSEMBLE, *ONLINE),
    "grpo": ("grpo", *VERIFIER, *ONLINE),
    "grpo, bf16": ("grpo", *VERIFIER, *ONLINE, "trainer.precision=bf16"),
    "grpo, LoRA": ("grpo", *VERIFIER, *ONLINE, "model.lora.r=8"),
    "grpo, a step ahead": ("grpo", *VERIFIER, *ONLINE, "trainer.rollouts.max_staleness=1"),
    "ppo": ("ppo", *VERIFIER, *ONLINE, "trainer.train_batch_size=32"),
    "sft": ("sft", *OFFLINE),
    "sft, checkpointing": ("sft", *OFFLINE, "model.gradient_checkpointing=true"),
    "dpo": ("dpo", *OFFLINE),
    "reward_model": ("reward_model", *OFFLINE),
    "prm": ("prm", *OFFLINE),
}
KEYS = ("loss", "grad_norm", "reward/mean", "kl", "entropy", "drift/mean_abs", "tokens_generated")


def words(case: tuple[str, ...], device: str, run: Path, *more: str) -> list[str]:
    """Of ``rlhf train``; a word with ``=`` is a setting."""
    settings = (*case[1:], *more, f"strategy.device={device}")
    flat = [w for word in settings for w in (("--set", word) if "=" in word else (word,))]
    return ["train", "--algo", case[0], *flat, "--run-dir", str(run)]


def rows_of(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]] if file.is_file() else []


def run_case(case: tuple[str, ...]) -> dict[str, Any]:
    precision = () if any("precision" in word for word in case) else ("trainer.precision=fp32",)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, device in (("cpu", "cpu"), ("card", "cuda"), ("again", "cuda")):
            _process.run_to_end(words(case, device, folder / name, *precision), folder)
        killed = folder / "killed"
        was_killed = _process.kill_when(
            lambda: any(row["step"] >= 2 for row in rows_of(killed)), words(case, "cuda", killed, *precision), folder
        )
        if was_killed:
            _process.run_to_end(["train", "--resume", str(killed)], folder)
        digests = {name: digest_of(folder / name) for name in ("card", "again", "killed")}
        return {
            "first_step": _compared(folder / "cpu", folder / "card"),
            "weights": _change_gap(folder / "cpu", folder / "card"),
            "made_twice": _equal(digests["card"], digests["again"]),
            "killed_and_resumed": _equal(digests["card"], digests["killed"]) if was_killed else "not killed",
            "weights_made_twice": _change_gap(folder / "card", folder / "again"),
            "weights_resumed": _change_gap(folder / "card", folder / "killed"),
        }


def _equal(a: Mapping[str, str], b: Mapping[str, str]) -> str:
    differ = [what for what in ("metrics", "weights") if a[what] != b[what]]
    return f"other {' and '.join(differ)}" if differ else "bit for bit"


def _compared(cpu: Path, card: Path) -> dict[str, Any]:
    """Values of the first step on both, and the largest relative difference of all that it reports."""
    a, b = (next(row for row in rows_of(run) if row["step"] and "loss" in row) for run in (cpu, card))
    shown = {key: [a[key], b[key]] for key in KEYS if key in a and key in b}
    numbers = [{key for key, value in row.items() if isinstance(value, int | float)} for row in (a, b)]
    gaps = {k: abs(a[k] - b[k]) / max(abs(a[k]), abs(b[k]), 1e-3) for k in numbers[0] & numbers[1]}
    worst = max(gaps, key=lambda key: gaps[key])
    unshared = sorted(numbers[0] ^ numbers[1])
    more = {"only_one_has": unshared} if unshared else {}
    return {**shown, "largest_difference": {worst: float(f"{gaps[worst]:.1e}")}, **more}


def _change_gap(run: Path, other: Path) -> float | None:
    """Norm of the difference of two runs' changes over the norm of the first's change."""
    from safetensors.torch import load_file

    from rlhf_core.models import resolve_model
    from rlhf_plugin_preflight.device.runs import difference

    start = load_file(Path(resolve_model("pocket").path) / "model.safetensors")
    first, second = (
        {name: tensor for file in (folder / "final").glob("*.safetensors") for name, tensor in load_file(file).items()}
        for folder in (run, other)
    )
    gap = difference(first, second, start)
    return None if gap is None else float(f"{gap:.1e}")


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    return {name: partial(run_case, case) for name, case in CASES.items()}

"""``strategy.sequence_parallel`` equals one process, and no rank holds a whole sequence; without exchanges it does
not. ``strategy.tensor_parallel`` does too, and no rank holds a whole weight of a layer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rlhf_core.models import ModelConfig, load_tokenizer

from .test_resharding import apart, settings, train, weights

SCRIPT = Path(__file__).parent / "ulysses.py"
TWO = (
    "sft, selective",
    "sft, lora, checkpointing",
    "dpo",
    "dpo, lora, selective",
    "grpo, lora, checkpointing",
    "grpo, by tokens",
)


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 4},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 6},
    "gemma3_text": {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "qwen2": {"num_key_value_heads": 2},
    "phi3": {"num_key_value_heads": 2, "pad_token_id": 0},
    "olmo2": {"num_key_value_heads": 4},
    "granite": {"num_key_value_heads": 2},
    "smollm3": {"num_key_value_heads": 2, "pad_token_id": 0},
    "gpt_neox": {},
    "gpt2": {},
}
"""Two layers of four heads; Qwen3 has half as many of keys and values, and its embedding is its head."""

FAMILIES_OF_WINDOWS = ("mistral", "gemma3_text")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model of each family."""
    folder, tokenizer = tmp_path_factory.mktemp("models"), load_tokenizer(ModelConfig())
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
    }
    for family, more in FAMILIES.items():
        torch.manual_seed(1)
        config = CONFIG_MAPPING[family](**sizes, **more, bos_token_id=1, eos_token_id=2)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / family)
        tokenizer.save_pretrained(folder / family)
    return folder


def found(
    folder: Path, models: Path, ranks: int, size: int, *cases: str, by: str = "sequence_parallel"
) -> dict[str, Any]:
    """What the script finds on so many ranks, in groups of ``size``."""
    out = folder / "found.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    done = subprocess.run(
        [*command, str(SCRIPT), str(out), str(models), f"{by}={size}", *cases],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())


def check_equal(numbers: dict[str, float]) -> None:
    assert numbers.pop("moved") > 1e-3
    assert max(numbers.values()) < 1e-5, numbers


def check_divided(numbers: dict[str, list[int]], size: int) -> None:
    """The longest slice, and half as much again as a rank's share of bytes: one rank has all learned tokens."""
    (length, whole), of_ranks = numbers.pop("one"), numbers.values()
    assert [row[0] for row in of_ranks] == [-(-length // size)] * size
    assert max(row[1] for row in of_ranks) < 1.5 * whole / size


@pytest.mark.slow
@pytest.mark.timeout(560)
def test_two_ranks_equal_one_process_and_hold_half(models: Path, tmp_path: Path) -> None:
    cases = [f"{family}: {kind}" for family, kind in zip(("llama", "qwen3") * 3, TWO, strict=True)]
    numbers = found(tmp_path, models, 2, 2, "llama: lengths", "qwen3: without exchange, sft", *cases)
    check_divided(numbers.pop("llama: lengths"), 2)
    apart = numbers.pop("qwen3: without exchange, sft")
    assert apart["after"] > 1e-3, "attention to one's own slice alone is not the same"
    assert len(numbers) == len(TWO)
    for row in numbers.values():
        check_equal(row)


@pytest.mark.slow
@pytest.mark.timeout(560)
@pytest.mark.parametrize("families", [FAMILIES_OF_WINDOWS, pytest.param(tuple(FAMILIES), marks=pytest.mark.long)])
def test_families_with_and_without_windows(families: tuple[str, ...], models: Path, tmp_path: Path) -> None:
    numbers = found(tmp_path, models, 2, 2, *(f"{family}: grpo" for family in families))
    assert len(numbers) == len(families)
    for row in numbers.values():
        check_equal(row)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(560)
def test_four_ranks_equal_one_process_with_keys_and_values_repeated(models: Path, tmp_path: Path) -> None:
    numbers = found(tmp_path, models, 4, 4, "qwen3: lengths", "qwen3: sft, lora", "qwen3: grpo", "llama: dpo")
    check_divided(numbers.pop("qwen3: lengths"), 4)
    assert len(numbers) == 3
    for row in numbers.values():
        check_equal(row)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(560)
def test_two_groups_of_two_ranks_equal_one_process(models: Path, tmp_path: Path) -> None:
    """One of which has samples for its first rank alone, the other for its last."""
    numbers = found(tmp_path, models, 4, 2, "qwen3: grpo, by tokens", "llama: sft, checkpointing")
    assert len(numbers) == 2
    for row in numbers.values():
        check_equal(row)


PLANNED = ("llama", "qwen3", "mistral", "gemma3_text", "qwen2", "granite", "smollm3", "gpt_neox")


@pytest.mark.slow
@pytest.mark.timeout(560)
@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (2, ("qwen3: sft", "llama: dpo, lora", "qwen3: grpo, lora, checkpointing")),
        pytest.param(
            4, ("qwen3: grpo, by tokens", "llama: sft, lora, checkpointing", "qwen2: dpo"), marks=pytest.mark.long
        ),
        pytest.param(2, tuple(f"{family}: grpo" for family in PLANNED), marks=pytest.mark.long),
    ],
    ids=["two", "four", "families"],
)
def test_ranks_that_divide_weights_equal_one_process(
    ranks: int, cases: tuple[str, ...], models: Path, tmp_path: Path
) -> None:
    numbers = found(tmp_path, models, ranks, 2, *cases, by="tensor_parallel")
    assert len(numbers) == len(cases)
    for row in numbers.values():
        check_equal(row)


@pytest.mark.slow
@pytest.mark.timeout(560)
def test_a_rank_holds_and_computes_half_of_each_layer(models: Path, tmp_path: Path) -> None:
    seen = found(tmp_path, models, 2, 2, "qwen3: parts", by="tensor_parallel")["qwen3: parts"]
    assert len(seen["gathered"]) == 2 * 7, "linear layers of two decoder layers"
    summed = ("o_proj", "down_proj")
    half = {name: [0.5, 1.0 if name.endswith(summed) else 0.5] for name in seen["gathered"]}
    assert seen["shares"] == [half, half]
    assert seen["gathered"] == {name: [1.0, 1.0] for name in half}
    assert max(seen["alone"]) < 1e-5
    assert seen["apart"] == 0.0, "what is not divided is the same on both"


@pytest.mark.slow
@pytest.mark.timeout(560)
def test_a_run_on_two_ranks_equals_one_process(models: Path, tmp_path: Path) -> None:
    """GRPO with LoRA and a KL penalty; a penalty on long completions is what the random model learns from."""
    whole = trained(tmp_path / "one", models, 1)
    assert len(whole) == 2
    assert min(row["grad_norm"] for row in whole) > 1e-3
    assert whole[1]["kl"] > 1e-6
    for divided in ("sequence_parallel", "tensor_parallel"):
        of_ranks = trained(tmp_path / divided, models, 2, "strategy=fsdp", f"strategy.{divided}=2")
        for row, want in zip(of_ranks, whole, strict=True):
            for name in ("loss", "grad_norm", "kl", "reward/mean", "entropy"):
                assert row[name] == pytest.approx(want[name], abs=1e-5), name


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(560)
def test_divided_weights_go_on_with_other_ranks_and_strategies(models: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Count to {n % 9 + 1}.", "completion": " ".join("123456789"[: n % 9 + 1])} for n in range(48)]
    data, run, plain = (tmp_path / name for name in ("rows.jsonl", "run", "plain"))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    begin = ["--algo", "sft", "--model", str(models / "qwen3"), "--dataset", str(data)]
    begin += settings(batch_size=8, eval_every=0, **{"optimizer.eps": 1e-3, "optimizer.learning_rate": 1e-3})
    steps, two = "trainer.max_steps", ["--set", "strategy=fsdp", "--set", "strategy.tensor_parallel=2", "--nproc", "2"]
    train(*begin, "--run-dir", str(plain), "--nproc", "1", "--set", f"{steps}=6")
    train(*begin, "--run-dir", str(run), *two, "--set", f"{steps}=2")
    train("--resume", str(run), "--nproc", "1", "--set", "strategy=single", "--set", f"{steps}=4")
    train("--resume", str(run), *two, "--set", f"{steps}=6")
    assert apart(weights(run), weights(plain)) < 1e-6
    assert apart(weights(run), load_file(models / "qwen3" / "model.safetensors")) > 1e-3


def trained(folder: Path, models: Path, ranks: int, *settings: str) -> list[dict[str, float]]:
    """Metrics of the updates of a run."""
    settings = (
        "trainer.steps=2",
        "trainer.eval_samples=0",
        "trainer.rollout_batch_size=32",
        "trainer.sampling.max_tokens=24",
        "trainer.overlong.cache=23",
        "trainer.kl.coefficient=0.1",
        "trainer.precision=fp32",
        "trainer.optimizer.learning_rate=1e-3",
        "model.lora.r=4",
        *settings,
    )
    command = ["train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic"]
    command += ["--model", str(models / "qwen3"), "--nproc", str(ranks), "--run-dir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_core.cli.main", *command, *(w for s in settings for w in ("--set", s))],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "grad_norm" in row]

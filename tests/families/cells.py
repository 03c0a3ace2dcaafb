"""What works with what: two steps of GRPO with a tiny random model of a family, one setting at a time.

Each cell is ``yes``, or the first line of the error that refuses it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rlhf_core.models import ModelConfig, load_policy, load_tokenizer
from rlhf_core.rollouts import ToolResult
from rlhf_core.training.forward import structure
from rlhf_core.types.errors import RlhfError
from rlhf_plugin_episodes.config import EnvironmentConfig
from rlhf_plugin_episodes.tool_spec import tool_spec
from tests.families.built import build
from tests.trainers.conftest import ONLINE, Train, with_trainer

TABLE = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2", "smollm3", "granite", "stablelm"),
    *("cohere2", "glm4", "starcoder2", "gpt2", "gpt_neox", "opt", "falcon", "bloom"),
    *("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3", "qwen3_5_text", "mamba"),
)
"""Dense, of other positions, mixtures of experts, recurrent."""
WIDE = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64, "max_position_embeddings": 1024}
OWN_SIZES: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {"n_embd": 128, "n_positions": 1024},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 128},
    "bloom": {"n_head": 4, "hidden_size": 128},
    "mamba": {"hidden_size": 128},
    "deepseek_v3": {},
}
NO_HEADS = ("gpt2", "opt", "bloom", "mamba", "gpt_neox", "falcon", "deepseek_v3", "phi3", "starcoder2", "stablelm")
BASE = with_trainer(
    ONLINE,
    steps=2,
    eval_samples=0,
    drop_constant_groups=False,
    entropy_coefficient=0.1,
    sampling={"max_tokens": 8},
    checkpoint_every=0,
)


def save(family: str, folder: Path) -> Path:
    """A model of a family with a tokenizer whose template knows tools."""
    tokenizer = load_tokenizer(ModelConfig(path="pocket", chat_template="hermes"))
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    heads = {} if family in NO_HEADS else {"head_dim": 32}
    sizes = {**WIDE, **heads, **OWN_SIZES.get(family, {}), "vocab_size": len(tokenizer), **ends}
    if not (folder / "config.json").is_file():
        build(family, **sizes).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


class ReplyConfig(EnvironmentConfig):
    """Answers every turn of the policy once."""

    name: str = "reply"
    component: ClassVar[str] = f"{__name__}:Reply"
    tool_specs: ClassVar = (tool_spec("do", "Does.", ["what"], what="string"),)
    pure: ClassVar[bool] = True
    responds: ClassVar[bool] = True


class Reply:
    def __init__(self, config: ReplyConfig) -> None:
        self.turns = 0

    def reset(self, prompt: Any, seed: int) -> None:
        self.turns = 0

    def step(self, calls: Any) -> list[str]:
        return ["done" for _ in calls]

    def respond(self, text: str) -> ToolResult | None:
        self.turns += 1
        return None if self.turns > 1 else ToolResult("Again.")

    def score(self, sample: Any) -> float:
        return float(len(sample.completion))


def train(model: Path, folder: Path, base: Mapping[str, Any] = BASE, /, **settings: Any) -> None:
    Train(folder)({**base, "model": {"path": str(model), "prompt_format": "raw", **settings}})
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    made = [row for row in rows if "grad_norm" in row]
    assert len(made) == 2
    assert all(row["grad_norm"] > 0 and row["drift/mean_abs"] < 1e-3 for row in made), made


def packing(model: Path, folder: Path) -> None:
    train(model, folder, with_trainer(BASE, packing="on"))


def sharing(model: Path, folder: Path) -> None:
    allows = structure(load_policy(ModelConfig(path=str(model))).model)
    train(model, folder, with_trainer(BASE, packing="auto" if allows.pack else "off", share_prefix=True))
    if not allows.share and not allows.pack:
        raise RlhfError("its prompts are read once for each completion (recurrent states, or logits after the head)")


def lora(model: Path, folder: Path) -> None:
    train(model, folder, lora={"r": 4})


def qlora(model: Path, folder: Path) -> None:
    train(model, folder, lora={"r": 4}, quantize="nf4")


def episodes(model: Path, folder: Path) -> None:
    sampling = {"max_tokens": 100}
    base = with_trainer(BASE, sampling=sampling, rollout_batch_size=4, group_size=2)
    agent = {"name": "multi_turn", "max_turn_tokens": 4, "max_turns": 2, "workers": 1}
    base = {**base, "environment": {"name": "reply"}, "agent": agent, "reward": {"name": "environment"}}
    site = folder / "site"  # workers find the environment as that of a distribution
    info = site / "reply-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reply\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rlhf.environment]\nreply = {__name__}:ReplyConfig\n")
    sys.path.insert(0, str(site))
    try:
        train(model, folder, base, prompt_format="chat")
    finally:
        sys.path.remove(str(site))
    turns = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(row.get("turns/mean", 0.0) for row in turns) > 1


def vllm(model: Path, folder: Path) -> None:
    python = os.environ.get("RLHF_VLLM_PYTHON", "")
    arguments = ["--enforce-eager", "--max-num-seqs=16"]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
    }
    rollout = {"name": "vllm", "python": python, "arguments": arguments, "environment": environment, "start_s": 240}
    train(model, folder, {**BASE, "rollout": rollout})


def fsdp(model: Path, folder: Path) -> None:
    on_two_processes(model, folder, "fsdp")


def zero(model: Path, folder: Path) -> None:
    on_two_processes(model, folder, "deepspeed")


def ulysses(model: Path, folder: Path) -> None:
    on_two_processes(model, folder, "fsdp", "strategy.sequence_parallel=2")


def on_two_processes(model: Path, folder: Path, strategy: str, *further: str) -> None:
    """As :func:`train`, by `rlhf train`."""
    settings = [
        *("threads=1", "dataset.limit=64", "reward.workers=1", "model.prompt_format=raw", "trainer.steps=2"),
        *("trainer.rollout_batch_size=8", "trainer.group_size=4", "trainer.eval_samples=0"),
        *("trainer.sampling.max_tokens=8", "trainer.drop_constant_groups=false", "trainer.entropy_coefficient=0.1"),
        *(f"strategy={strategy}", "trainer.checkpoint_every=0", *further),
    ]
    words = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--model", str(model)]
    words += [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *words, "--nproc", "2"]
    done = subprocess.run(
        [*command, "--run-dir", str(folder / "run")], capture_output=True, text=True, timeout=240, check=False
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error")] or done.stderr.splitlines()[-1:]
        raise RlhfError(lines[0].removeprefix("error: ").strip() if lines else f"exit code {done.returncode}")


CELLS: Mapping[str, Callable[[Path, Path], None]] = {
    "packing": packing,
    "prefix sharing": sharing,
    "LoRA": lora,
    "QLoRA": qlora,
    "episodes": episodes,
    "fsdp": fsdp,
    "ZeRO": zero,
    "Ulysses": ulysses,
    "vLLM": vllm,
}


def cell(family: str, what: str, folder: Path) -> str:
    """Try one cell in an empty folder: ``yes``, or why it is refused."""
    model = save(family, folder / "model")
    runs = folder / what.replace(" ", "-")
    runs.mkdir(parents=True)
    try:
        CELLS[what](model, runs)
    except RlhfError as error:
        line = re.sub(r" at http://\S+", "", str(error).splitlines()[0])
        return line.replace(str(model), family).split(". ")[0]
    return "yes"

"""Offline trainings on two ranks that read their slices of the model, against one process: run by torchrun.

A deep model, so that a layer is little of it: how many bytes a rank held before the first update says whether it held
the model. Rank 0 writes what it found.
"""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlhf_core.cli.options import open_plugins, resolve_options
from rlhf_core.launch import process
from rlhf_core.launch.run import plan_run
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.save import save_model
from rlhf_core.models.slices import Stored
from rlhf_core.strategy.accelerated import AcceleratedStrategy
from rlhf_core.strategy.local import LocalStrategy
from rlhf_core.trainers.common.learner import Learner
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_fsdp.strategy import Fsdp

LAYERS = 20
COMMON = {
    "threads": 1,
    "dataset.heldout_by": "place",
    "trainer.max_steps": 2,
    "trainer.checkpoint_every": 1,
    "trainer.batch_size": 4,
    "trainer.eval_samples": 4,
    "trainer.micro_batch_size": 2,
    "trainer.optimizer.learning_rate": 1e-3,
}
SAMPLED = {"trainer.sample_prompts": 3, "trainer.sampling.max_tokens": 4}
"""All weights are gathered meanwhile."""
CASES: dict[str, dict[str, Any]] = {
    "sft": {"trainer.sample_prompts": 0},
    "sft+lora": {"model.lora.r": 4, **SAMPLED},
    "dpo": SAMPLED,
    "dpo+lora": {"model.lora.r": 4, "trainer.sample_prompts": 0},
    "reward_model": {},
}


class Held(TorchDispatchMode):
    """Bytes of memory that tensors of this process hold, and the most they held; of a DTensor this rank's part."""

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._storages = 0, dict[int, weakref.ref[torch.UntypedStorage]]()
        self.over = False
        """Whether nothing is counted any more."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and count what it was given and what it returned."""
        out = func(*args, **(kwargs or {}))
        if self.over:
            return out
        new = False
        for value in tree_leaves((args, out)):
            tensor = getattr(value, "_local_tensor", getattr(value, "elem", value))  # or what a collective fills
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                new = new or id(storage) not in self._storages
                self._storages.setdefault(id(storage), weakref.ref(storage, partial(self._drop, id(storage))))
        if new:
            sizes = [storage.nbytes() for ref in list(self._storages.values()) if (storage := ref()) is not None]
            self.peak = max(self.peak, sum(sizes))
        return out

    def _drop(self, key: int, _: Any) -> None:
        self._storages.pop(key, None)


def write_model(folder: Path) -> int:
    """A small language model of many layers; returns the bytes of its weights."""
    pocket = load_policy(ModelConfig(path="pocket"))
    config = copy.deepcopy(pocket.model.config)
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = LAYERS, 128, 256
    config.num_attention_heads = config.num_key_value_heads = 4
    torch.manual_seed(0)
    model = type(pocket.model)(config)
    save_model(model, pocket.tokenizer, folder)
    return sum(p.numel() * p.element_size() for p in model.parameters())


def write_rows(file: Path) -> None:
    """Pairs and demonstrations."""
    rows = [
        {
            "prompt": f"What is the code of {name}?",
            "completion": f"The code is {name}.",
            "chosen": f"The code is {name}.",
            "rejected": "I do not know.",
        }
        for name in ("Ann", "Bob", "Cleo", "Dan", "Eve")
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows * 8))


def train(case: str, place: Path, run: str, strategy: Any, resume: bool = False) -> dict[str, torch.Tensor]:
    """Train in this process, as one of the strategy's ranks; the weights of ``final/``."""
    algo, settings = case.partition("+")[0], {**COMMON, **CASES[case]}
    names = {"algo": algo, "model": str(place / "model"), "dataset": str(place / "rows.jsonl")}
    registry, hooks = open_plugins(reports=False)
    config = resolve_options(registry, (), [f"{key}={value}" for key, value in settings.items()], names)
    plan = plan_run(registry, hooks, config, strategy.world_size)
    with patch.object(process, "_build_strategy", lambda *_: strategy):
        process.run_plan(plan, config, registry, hooks, place / run, resume=resume)
    return load_file(str(place / run / "final" / "model.safetensors"))


@contextmanager
def watched() -> Iterator[dict[str, int]]:
    """Until the first update: bytes held at most, and how often a weight was read whole."""
    found = {"whole reads": 0, "held": 0}
    update, read, held = Learner.update_sums, Stored.read, Held()

    def reading(self: Stored, rows: tuple[slice, ...]) -> torch.Tensor:
        part = read(self, rows)
        found["whole reads"] += part.numel() >= math.prod(self.shape)
        return part

    def updating(*args: Any, **kwargs: Any) -> Any:
        held.over, found["held"] = True, held.peak
        return update(*args, **kwargs)

    with patch.object(Stored, "read", reading), patch.object(Learner, "update_sums", updating), held:
        yield found


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest difference of two models."""
    assert one.keys() == other.keys()
    return max(float((one[k] - other[k]).abs().max()) for k in one)


def kl(place: Path, run: str) -> float:
    """KL of sampled completions from the reference at the end of a run; 0 where nothing was sampled."""
    summary = json.loads((place / run / "summary.json").read_text())
    return float(summary["evaluation_after"].get("eval/kl", 0.0))


def again(place: Path, run: str) -> None:
    """Leave of a run what it had after one step, without the reference logprobs that it kept."""
    for name in ("final", "reference", "checkpoints/step-000002"):
        shutil.rmtree(place / run / name, ignore_errors=True)
    (place / run / "summary.json").unlink()


def main(out: str, *cases: str) -> None:
    """These of ``CASES``."""
    ranks, place = AcceleratedStrategy(int(os.environ["WORLD_SIZE"]), "cpu", 200), Path(out).parent
    size = write_model(place / "model") if ranks.rank == 0 else 0
    if ranks.rank == 0:
        write_rows(place / "rows.jsonl")
    (size, _), found = ranks.gather_objects(size), dict[str, dict[str, float]]()
    for case in cases:
        with patch.object(Fsdp, "close", lambda _: None), watched() as seen:
            two = train(case, place, f"{case}-2", Fsdp(FsdpConfig(), ranks))
        every = ranks.gather_objects(seen)
        found[case] = {name: max(rank[name] for rank in every) for name in seen}
        found[case]["held"] /= size
        if case in ("dpo", "reward_model"):
            if ranks.rank == 0:
                again(place, f"{case}-2")
            ranks.barrier("the run cut back")
            with patch.object(Fsdp, "close", lambda _: None):
                found[case]["resumed"] = apart(
                    two, train(case, place, f"{case}-2", Fsdp(FsdpConfig(), ranks), resume=True)
                )
        if ranks.rank == 0:
            one = train(case, place, f"{case}-1", LocalStrategy())
            found[case]["apart"] = apart(one, two)
            found[case] |= {
                "kl": kl(place, f"{case}-1"),
                "kl apart": abs(kl(place, f"{case}-1") - kl(place, f"{case}-2")),
            }
            start = load_file(str(place / "model" / "model.safetensors"))
            found[case]["moved"] = max(float((one[k] - start[k]).abs().max()) for k in one.keys() & start.keys())
        ranks.barrier("one process")
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(found, indent=1))
    ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

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
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlhf_core.cli.options import open_plugins, resolve_options
from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.save import save_model
from rlhf_core.models.slices import Stored
from rlhf_core.runs.launch import process
from rlhf_core.runs.launch.run import plan_run
from rlhf_core.training.learner import Learner
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_fsdp.strategy import Fsdp
from rlhf_plugin_reward.net import new_head
from rlhf_plugin_rubric.rubric import load_rubric

LAYERS = 16
COMMON = {
    "threads": 1,
    "dataset.heldout_by": "place",
    "dataset.heldout_fraction": 0.2,
    "trainer.max_steps": 2,
    "trainer.checkpoint_every": 1,
    "trainer.batch_size": 4,
    "trainer.eval_samples": 2,
    "trainer.micro_batch_size": 2,
    "trainer.optimizer.learning_rate": 1e-3,
}
SAMPLED = {"trainer.sample_prompts": 3, "trainer.sampling.max_tokens": 4}
"""All weights are gathered meanwhile."""
MIXED = {"trainer.precision": "bf16", "trainer.micro_batch_size": 1}
"""In micro-batches of one example: sums in bfloat16 depend on what else is in them."""
CASES: dict[str, dict[str, Any]] = {
    "sft": {"trainer.sample_prompts": 0},
    "sft+lora": {"model.lora.r": 4, **SAMPLED},
    "sft+bf16": {"trainer.sample_prompts": 0, **MIXED},
    "dpo+bf16": {"trainer.sample_prompts": 0, **MIXED},
    "reward_model+bf16": MIXED,
    "dpo": SAMPLED,
    "dpo+lora": {"model.lora.r": 4, "trainer.sample_prompts": 0},
    "reward_model": {},
    "reward_model+lora": {"model.lora.r": 4},
    "reward_model+adapters": {"trainer.train_trunk": "lora"},
    "reward_model+frozen": {"trainer.train_trunk": "frozen"},
    "kto": {"trainer.sample_prompts": 0},
    "prm+adapters": {"trainer.train_trunk": "lora"},
    "prm+frozen": {"trainer.train_trunk": "frozen"},
    "rubric_model+adapters": {"trainer.train_trunk": "lora"},
}


COUNTED = ("sft", "dpo+lora", "reward_model", "reward_model+adapters", "reward_model+frozen")
"""Whose bytes are counted, which takes as long again as the run."""
RESUMED = (
    "fsdp/dpo",
    "fsdp/reward_model",
    "fsdp/reward_model+frozen",
    "3/reward_model+frozen",
)
"""Of these the run is cut back to its first step, and goes on."""


class Held(TorchDispatchMode):
    """Bytes of memory that tensors of this process hold, and the most they held; of a DTensor this rank's part."""

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._storages = 0, dict[int, weakref.ref[torch.UntypedStorage]]()
        self._sizes, self._sum = dict[int, int](), 0
        self.over = False
        """Whether nothing is counted any more."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and count what it was given and what it returned."""
        out = func(*args, **(kwargs or {}))
        if self.over:
            return out
        for value in tree_leaves((args, out)):
            tensor = getattr(value, "_local_tensor", getattr(value, "elem", value))  # or what a collective fills
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                self._storages.setdefault(id(storage), weakref.ref(storage, partial(self._drop, id(storage))))
                size = storage.nbytes()
                self._sum += size - self._sizes.get(id(storage), 0)
                self._sizes[id(storage)] = size
        if self._sum > self.peak:  # what was emptied since is in the sum still
            alive = {key: storage for key, ref in list(self._storages.items()) if (storage := ref()) is not None}
            self._sizes = {key: storage.nbytes() for key, storage in alive.items()}
            self._sum = sum(self._sizes.values())
            self.peak = max(self.peak, self._sum)
        return out

    def _drop(self, key: int, _: Any) -> None:
        self._storages.pop(key, None)
        self._sum -= self._sizes.pop(key, 0)


def write_model(folder: Path, layers: int = LAYERS, size: int = 128) -> int:
    """A small language model of many layers, with hidden states of this size; returns the bytes of its weights."""
    pocket = load_policy(ModelConfig(path="pocket"))
    config = copy.deepcopy(pocket.model.config)
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = layers, size, 4 * size
    config.num_attention_heads = config.num_key_value_heads = 4
    torch.manual_seed(0)
    model = type(pocket.model)(config)
    save_model(model, pocket.tokenizer, folder)
    return sum(p.numel() * p.element_size() for p in model.parameters())


def write_rows(place: Path) -> None:
    """Pairs and demonstrations; solutions with labelled steps; responses with grades."""
    pairs = [
        {
            "prompt": f"What is the code of {name}?",
            "completion": f"The code is {name}.",
            "chosen": f"The code is {name}.",
            "rejected": "I do not know.",
        }
        for name in ("Ann", "Bob", "Cleo", "Dan", "Eve")
    ]
    steps = [
        {"prompt": row["prompt"], "steps": ["I know that.", row["completion"]], "labels": [n % 3 > 0, n % 3 > 1]}
        for n, row in enumerate(pairs)
    ]
    names = load_rubric("assistant").names
    graded = [
        {"prompt": row["prompt"], "completion": row["completion"], "parts": dict.fromkeys(names, n / 4)}
        for n, row in enumerate(pairs)
    ]
    for name, rows in {"pairs": pairs, "steps": steps, "graded": graded}.items():
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 3))


def train(case: str, place: Path, run: str, strategy: Any, resume: bool = False) -> dict[str, torch.Tensor]:
    """Train in this process, as one of the strategy's ranks; the weights of ``final/``."""
    algo, settings = case.partition("+")[0], {**COMMON, **CASES[case]}
    rows = {"prm": "steps", "rubric_model": "graded"}.get(algo, "pairs")
    names = {"algo": algo, "model": str(place / "model"), "dataset": str(place / f"{rows}.jsonl")}
    registry, hooks = open_plugins(reports=False)
    config = resolve_options(registry, (), [f"{key}={value}" for key, value in settings.items()], names).config
    plan = plan_run(registry, hooks, config, strategy.world_size)
    with patch.object(process, "_build_strategy", lambda *_: strategy):
        process.run_plan(plan, config, registry, hooks, place / run, resume=resume)
    return final(place, run)


def final(place: Path, run: str) -> dict[str, torch.Tensor]:
    """Every weight in ``final/``, those of a trunk by its own names."""
    files = sorted((place / run / "final").rglob("*.safetensors"))
    return {name.removeprefix("model."): value for file in files for name, value in load_file(str(file)).items()}


@contextmanager
def watched(counted: bool) -> Iterator[dict[str, int]]:
    """Until the first update: bytes held at most, if they are ``counted``, and how often a weight was read whole."""
    found = {"whole reads": 0, "held": 0}
    update, read, held = Learner.update_sums, Stored.read, Held()

    def reading(self: Stored, rows: tuple[slice, ...]) -> torch.Tensor:
        part = read(self, rows)
        found["whole reads"] += part.numel() >= math.prod(self.shape)
        return part

    def updating(*args: Any, **kwargs: Any) -> Any:
        held.over, found["held"] = True, held.peak
        return update(*args, **kwargs)

    with (
        patch.object(Stored, "read", reading),
        patch.object(Learner, "update_sums", updating),
        held if counted else nullcontext(),
    ):
        yield found


def strategy_of(ranks: AcceleratedStrategy, name: str) -> Any:
    """FSDP, with layers in bfloat16 maybe, or DeepSpeed of a stage, around ranks that are there."""
    if name.startswith("fsdp"):
        made: Any = Fsdp(FsdpConfig(param_dtype="bfloat16" if name == "fsdp16" else "float32"), ranks)
    else:
        from rlhf_plugin_deepspeed.config import DeepSpeedConfig
        from rlhf_plugin_deepspeed.stage3 import Zero3
        from rlhf_plugin_deepspeed.strategy import Zero

        config = DeepSpeedConfig.model_validate({"device": "cpu", "stage": int(name), "bucket": 1000})
        made = (Zero3 if config.stage == 3 else Zero)(config, ranks)
    made.close = lambda: None  # with the run; the ranks go on
    return made


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest difference of two models."""
    assert one.keys() == other.keys()
    return max(float((one[k] - other[k]).abs().max()) for k in one)


def share_apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], place: Path) -> float:
    """Norm of the difference of two trained models over the norm of what training changed of the first."""
    model = load_file(str(place / "model" / "model.safetensors"))
    start = {name.removeprefix("model."): value for name, value in model.items()}
    names = one.keys() & start.keys()
    difference, change = (
        torch.stack([(one[k] - base[k]).double().square().sum() for k in names]).sum().sqrt() for base in (other, start)
    )
    return float(difference / change)


def moved(trained: dict[str, torch.Tensor], place: Path) -> dict[str, float]:
    """How far training moved the model's weights, and the head of a reward model."""
    model = load_file(str(place / "model" / "model.safetensors"))
    start = {name.removeprefix("model."): value for name, value in model.items()}
    heads = {"score.weight": new_head(128, 1, 0).weight.detach(), "heads": torch.zeros(5, 128)}
    known = {"moved": start, "head moved": heads}
    return {
        what: max((float((trained[k] - v).abs().max()) for k, v in before.items() if k in trained), default=0.0)
        for what, before in known.items()
    }


def kl(place: Path, run: str) -> float:
    """KL of sampled completions from the reference at the end of a run; 0 where nothing was sampled."""
    summary = json.loads((place / run / "summary.json").read_text())
    return float(summary["evaluation_after"].get("eval/kl", 0.0))


def again(place: Path, run: str) -> None:
    """Leave of a run what it had after one step, without the reference logprobs that it kept."""
    for name in ("final", "reference", "checkpoints/step-000002"):
        shutil.rmtree(place / run / name, ignore_errors=True)
    (place / run / "summary.json").unlink()


def compared(ranks: AcceleratedStrategy, layout: str, case: str, place: Path) -> dict[str, float]:
    """One of ``CASES`` on two ranks against one process, which rank 0 is: what was read and held, and how far apart."""
    run, alone = f"{case}-{layout}", f"{case}-1"
    with watched(layout in ("fsdp", "3") and case in COUNTED) as seen:
        two = train(case, place, run, strategy_of(ranks, layout))
    every = ranks.gather_objects(seen)
    found: dict[str, float] = {name: max(rank[name] for rank in every) for name in seen}
    if f"{layout}/{case}" in RESUMED:
        if ranks.rank == 0:
            again(place, run)
        ranks.barrier("the run cut back")
        found["resumed"] = apart(two, train(case, place, run, strategy_of(ranks, layout), resume=True))
    if ranks.rank == 0:
        one = final(place, alone) if (place / alone).exists() else train(case, place, alone, LocalStrategy())
        found["apart"] = apart(one, two)
        found |= {"kl": kl(place, alone), "kl apart": abs(kl(place, alone) - kl(place, run))}
        found |= moved(one, place)
        found["share apart"] = share_apart(one, two, place)
    ranks.barrier("one process")
    return found


def main(out: str, layers: str, *cases: str) -> None:
    """These of ``CASES``, each after the strategy that divides it: ``fsdp/sft``, ``3/reward_model``."""
    ranks, place = AcceleratedStrategy(int(os.environ["WORLD_SIZE"]), "cpu", 200), Path(out).parent
    size = write_model(place / "model", int(layers)) if ranks.rank == 0 else 0
    if ranks.rank == 0:
        write_rows(place)
    size = ranks.gather_objects(size)[0]
    found = {case: compared(ranks, *case.split("/"), place) for case in cases}
    if ranks.rank == 0:
        for numbers in found.values():
            numbers["held"] /= size
        Path(out).write_text(json.dumps(found, indent=1))
    ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

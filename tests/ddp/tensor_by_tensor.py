"""Models written from two ranks' shards, and ranks that fail meanwhile: run by torchrun with the rank whose look-up
fails at the end; the other one writes what it found.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.distributed.whole_weights import gather_weights
from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.save import save_model
from rlhf_core.rl.checkpoint import save_critic
from rlhf_core.training.policy_module import PolicyModule
from rlhf_core.types.errors import DeadlineExceeded, OtherRankFailed
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_fsdp.strategy import Fsdp
from rlhf_plugin_ppo.config import CriticSettings
from rlhf_plugin_ppo.critic import make_critic
from rlhf_plugin_reward.classifier_files import save_classifier
from rlhf_plugin_reward.net import RewardNet, new_head

sys.path.insert(0, str(Path(__file__).parent))

from offline_slices import Held, write_model

Write = Callable[[Path, Mapping[str, Any] | None], object]


class Written(NamedTuple):
    """What is sharded, the part of it whose weights are written, and what writes them into a folder."""

    root: torch.nn.Module
    part: torch.nn.Module
    write: Write


def loaded(lora: bool = False) -> Any:
    """The pocket model; adapters add something."""
    made = load_policy(ModelConfig(path="pocket", lora=LoraSettings(r=2) if lora else None))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in made.model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(generator=generator)
    return made


def cases() -> Iterator[tuple[str, Written]]:
    """Everything that a run writes weights of."""
    for name in ("tied", "untied", "adapters", "merged"):
        made = loaded(lora=name in ("adapters", "merged"))
        model, tokenizer = made.model, made.tokenizer
        if name == "untied":
            torch.manual_seed(0)
            config = copy.deepcopy(model.config)
            config.tie_word_embeddings = False
            model = type(model)(config)
        merge = name == "merged"
        write: Any = lambda folder, weights, m=model, t=tokenizer, b=merge: save_model(m, t, folder, weights, merge=b)  # noqa: E731
        yield name, Written(model, model, write)
    made = loaded()
    net, tokenizer = RewardNet(made.model.model, new_head(160, 1, 0)), made.tokenizer
    yield "reward model", Written(net, net, lambda folder, weights: save_classifier(net, tokenizer, folder, weights))
    for kind in ("shared", "separate"):
        made = loaded()
        module = PolicyModule(made.model)
        critic = module.critic = make_critic(CriticSettings(kind=kind), SimpleNamespace(policy=made))  # pyright: ignore

        def write_critic(folder: Path, weights: Mapping[str, Any] | None, critic: Any = critic) -> None:
            folder.mkdir()
            save_critic(critic, critic.state_dict() if weights is None else weights, folder)

        yield f"{kind} critic", Written(module, critic, write_critic)


def files(folder: Path) -> dict[str, bytes]:
    """Content by name."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def exported(strategy: Fsdp, place: Path) -> dict[str, int]:
    """Files of each case that differ from those of one process, or that only one of the two wrote."""
    found: dict[str, int] = {}
    for name, case in cases():
        whole, parts = place / name / "whole", place / name / "parts"
        if strategy.rank == 0:
            whole.parent.mkdir()
            case.write(whole, None)
        strategy.prepare(case.root)
        gather_weights(strategy, case.part, lambda weights, case=case, parts=parts: case.write(parts, weights))
        if strategy.rank == 0:
            one, two = files(whole), files(parts)
            assert any(file.endswith(".safetensors") for file in one)
            found[name] = sum(one.get(file) != two.get(file) for file in one.keys() | two.keys())
    return found


def held(strategy: Fsdp, place: Path) -> list[float]:
    """Bytes that each rank held at most while a deep model was written, beyond its share, in its largest weights."""
    if strategy.rank == 0:
        write_model(place / "deep")
    strategy.barrier("the deep model")
    deep = load_policy(ModelConfig(path=str(place / "deep")))
    largest = max(p.nbytes for p in deep.model.parameters())
    strategy.prepare(deep.model)
    share = sum(p.to_local().nbytes for p in deep.model.parameters())  # type: ignore[attr-defined]
    with Held() as counted:
        for parameter in deep.model.parameters():
            parameter.detach()  # so that shards are counted from the start
        gather_weights(strategy, deep.model, lambda w: save_model(deep.model, deep.tokenizer, place / "again", w))
    if strategy.rank == 0:
        assert files(place / "again") == files(place / "deep")
    return strategy.gather_objects((counted.peak - share) / largest)


def full_disk(strategy: Fsdp, place: Path) -> list[str]:
    """What each rank's error is where rank 0 cannot write, after which all ranks are in the same place."""
    made = loaded()
    strategy.prepare(made.model)

    def fill(weights: Mapping[str, Any]) -> None:
        assert weights["model.norm.weight"].numel()
        raise OSError(28, "No space left on device")

    error = ""
    try:
        gather_weights(strategy, made.model, fill)
    except (OSError, OtherRankFailed) as caught:
        error = f"{type(caught).__name__}: {caught}"
    strategy.barrier("after the full disk")
    gather_weights(strategy, made.model, lambda w: save_model(made.model, made.tokenizer, place / "after", w))
    return strategy.gather_objects(error)


def look_up_that_fails(strategy: Fsdp, failing: int) -> dict[str, Any] | None:
    """The error of the other rank, and after how many seconds; None on the rank that fails."""
    made = loaded()
    strategy.prepare(made.model)
    began = time.monotonic()
    if strategy.rank == failing:

        def fails(tensor: torch.Tensor) -> None:
            raise MemoryError("no memory for a whole weight")

        strategy.full_tensor = fails  # type: ignore[method-assign]
    try:
        gather_weights(strategy, made.model, dict)
    except MemoryError:
        return None
    except DeadlineExceeded as error:
        return {"error": str(error), "seconds": time.monotonic() - began}
    raise AssertionError("the other rank went on")


def main(out: str, failing: int, all_cases: str) -> None:
    """All of it, or the last part."""
    ranks = AcceleratedStrategy(int(os.environ["WORLD_SIZE"]), "cpu", 60)
    strategy, found = Fsdp(FsdpConfig(), ranks), dict[str, Any]()
    place = Path(out).parent
    if all_cases == "all":
        found["held"] = held(strategy, place)
        found["unlike"] = exported(strategy, place)
        found["full disk"] = full_disk(strategy, place)
    found["unlike"] = ranks.gather_objects(found.get("unlike"))[0]
    found["alone"] = look_up_that_fails(strategy, failing)
    if found["alone"] is not None:
        Path(out).write_text(json.dumps(found, indent=1))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

"""Models are written tensor by tensor from shards: the same files, one whole weight in memory at a time."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.distributed.whole_weights import Ended, gather_weights
from rlhf_core.models import ModelConfig
from rlhf_core.models.config import LoraSettings
from rlhf_core.models.layers.trunk_and_head import base_model
from rlhf_core.models.load import load_policy
from rlhf_core.models.save import save_model
from rlhf_core.training.weight_sync import WeightSync
from rlhf_core.types.errors import OtherRankFailed, RunDirError
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_fsdp.strategy import Fsdp
from rlhf_plugin_reward.classifier_files import save_classifier
from rlhf_plugin_reward.net import RewardNet, fresh_net
from rlhf_plugin_reward.store import save_shared


class Counted(Fsdp):
    """Knows how many bytes of whole weights were in memory at once."""

    def __init__(self) -> None:
        super().__init__(FsdpConfig(device="cpu"), AcceleratedStrategy(1, "cpu"))
        self.alive: list[weakref.ref[torch.Tensor]] = []
        self.peak = 0

    def full_tensor(self, tensor: torch.Tensor, everywhere: torch.dtype | None = None) -> torch.Tensor | None:
        """A copy, whose life is watched."""
        whole = super().full_tensor(tensor, everywhere)
        if whole is None:
            return None
        whole = whole.clone()
        self.alive = [ref for ref in self.alive if ref() is not None] + [weakref.ref(whole)]
        self.peak = max(self.peak, sum(t.nbytes for ref in self.alive if (t := ref()) is not None))
        return whole


@pytest.fixture
def strategy() -> Iterator[Counted]:
    made = Counted()
    yield made
    made.close()


def files(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("path", ["pocket", "untied"])
@pytest.mark.parametrize("lora", [None, LoraSettings(r=2)])
@pytest.mark.parametrize("merge", [False, True])
def test_a_policy(tmp_path: Path, strategy: Counted, path: str, lora: LoraSettings | None, merge: bool) -> None:
    if path == "untied":
        loaded = load_policy(ModelConfig(path="pocket"))
        loaded.model.config.tie_word_embeddings = False
        untied = type(loaded.model)(loaded.model.config)
        save_model(untied, loaded.tokenizer, tmp_path / "untied")
        path = str(tmp_path / "untied")
    loaded = load_policy(ModelConfig(path=path, lora=lora))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(generator=generator)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "whole", merge=merge)
    largest = max(p.nbytes for p in loaded.model.parameters())
    strategy.prepare(loaded.model)

    def write(weights: Mapping[str, Any]) -> None:
        save_model(loaded.model, loaded.tokenizer, tmp_path / "parts", weights, merge=merge)

    gather_weights(strategy, loaded.model, write)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    assert 0 < strategy.peak <= largest * (2 if lora else 1), "adapters are small, and kept while they are merged"


class Copying:
    """An engine that copies each weight, as vLLM in the training process does."""

    copies_weights_as = torch.bfloat16

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        for name in tensors:
            self.weights[name] = tensors[name].detach().clone()


def test_an_engine_that_copies_is_handed_one_whole_weight_at_a_time_in_its_own_type(strategy: Counted) -> None:
    policy = load_policy(ModelConfig(path="pocket")).model
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    strategy.prepare(policy)
    engine, names = Copying(), list(before)
    sync = WeightSync(policy, nullcontext, None, engine, names, strategy)
    sync.sync(1)
    assert 0 < strategy.peak <= max(p.nbytes for p in before.values()) // 2, "bfloat16"
    assert engine.weights.keys() == before.keys()
    assert all(torch.equal(engine.weights[name], before[name].bfloat16()) for name in names)
    plain = load_policy(ModelConfig(path="pocket")).model
    handed: list[bool] = []
    whole = SimpleNamespace(
        copies_weights_as=torch.bfloat16,
        update_weights=lambda _, views: handed.extend(views[n] is p for n, p in plain.named_parameters()),
    )
    WeightSync(plain, nullcontext, None, whole, names).sync(1)
    assert handed, "one process hands over its weights themselves, no clones"
    assert all(handed)


def merged_by_peft(net: RewardNet, tokenizer: Any, folder: Path) -> None:
    """The classifier of a copy whose layers peft itself has merged."""
    trunk = base_model(copy.deepcopy(net.trunk))
    for name, layer in list(trunk.named_modules()):
        if hasattr(layer, "get_delta_weight"):
            layer.merge()
            trunk.set_submodule(name, layer.get_base_layer())
    save_classifier(RewardNet(trunk, net.head), tokenizer, folder)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("adapters", ["none", "of the model", "of the trunk"])
def test_a_reward_model(tmp_path: Path, strategy: Counted, adapters: str, dtype: Any) -> None:
    lora = LoraSettings(r=2) if adapters == "of the model" else None
    loaded = load_policy(ModelConfig(path="pocket", lora=lora, dtype=dtype))
    sharing = "lora" if adapters == "of the trunk" else "none"
    net, tokenizer = fresh_net(loaded, 1, 0, sharing, copy_trunk=False), loaded.tokenizer
    generator = torch.Generator().manual_seed(0)
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(generator=generator)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    merged_by_peft(net, tokenizer, tmp_path / "peft")
    save_classifier(net, tokenizer, tmp_path / "whole")
    save_shared(net, tokenizer, tmp_path / "shared")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items()), "nothing is merged here"
    largest = max(p.nbytes for p in net.parameters())
    layers = [layer for layer in net.modules() if hasattr(layer, "get_delta_weight")]
    largest = max([largest, *(sum(p.nbytes for p in layer.parameters()) for layer in layers)])
    strategy.prepare(net)
    gather_weights(strategy, net, lambda w: save_classifier(net, tokenizer, tmp_path / "parts", w))
    gather_weights(strategy, net, lambda w: save_shared(net, tokenizer, tmp_path / "shared parts", w))
    assert 0 < strategy.peak <= largest, "one weight, with the adapters of its layer"
    save_classifier(net, tokenizer, tmp_path / "gathered", strategy.full_state(net))
    assert files(tmp_path / "whole") == files(tmp_path / "peft")
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    assert files(tmp_path / "gathered") == files(tmp_path / "whole")
    assert files(tmp_path / "shared parts") == files(tmp_path / "shared")


def test_a_disk_that_is_full_leaves_no_rank_waiting(strategy: Counted) -> None:
    module = torch.nn.Linear(2, 2)
    strategy.prepare(module)
    said: list[Any] = []
    strategy.gather_objects = lambda value: [said.append(value)]  # type: ignore[method-assign]

    def full(weights: Mapping[str, Any]) -> None:
        assert weights["weight"].shape == (2, 2)
        raise RunDirError("the disk is full")

    with pytest.raises(RunDirError):
        gather_weights(strategy, module, full)
    assert said == ["weight", Ended("RunDirError: the disk is full")]
    gather_weights(strategy, module, lambda _: None)
    assert said[2:] == [Ended("")]


def test_a_rank_that_is_told_of_a_failure_fails_too(strategy: Counted) -> None:
    module = torch.nn.Linear(2, 2)
    strategy.prepare(module)
    words: list[Any] = ["weight", "bias", Ended("OSError: no space")]
    strategy.gather_objects = lambda _: [words.pop(0)]  # type: ignore[method-assign]
    strategy.rank = 1
    with pytest.raises(OtherRankFailed, match=r"rank 0 failed .*OSError: no space"):
        gather_weights(strategy, module, lambda _: pytest.fail("rank 1 writes nothing"))
    assert words == []


def test_after_a_look_up_that_broke_off_nothing_is_exchanged(strategy: Counted) -> None:
    module = torch.nn.Linear(2, 2)
    strategy.prepare(module)
    said: list[Any] = []
    strategy.gather_objects = lambda value: [said.append(value)]  # type: ignore[method-assign]

    def fails(_: torch.Tensor) -> None:
        raise MemoryError

    strategy.full_tensor = fails  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        gather_weights(strategy, module, lambda weights: weights["bias"])
    assert said == ["bias"], "the other ranks may wait in the exchange that failed: another one would be taken for it"

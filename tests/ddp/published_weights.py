"""vLLM servers of two ranks that each hold a part of the policy: run by torchrun, rank 0 writes what was found.

A layer is little of the model; servers are stand-ins in threads. Gathering the weights is an error.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from rlhf_core.distributed import decoder_layers
from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import micro_batches_of_size
from rlhf_core.training.optimizer import prepare_to_learn
from rlhf_core.training.policy_module import PolicyModule
from rlhf_core.training.weight_sync import WeightSync, trained_names
from rlhf_core.types.errors import RlhfError
from rlhf_core.types.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_grpo.loss import GrpoClip
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_preflight.memory.live import LiveBytes, tensor_bytes
from rlhf_plugin_vllm import fleet
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_testing import make_context

sys.path.insert(0, str(Path(__file__).parent))

from matrix import items
from offline_slices import write_model

PLUGIN_TESTS = Path(__file__).parents[2] / "plugins" / "rlhf-plugin-vllm" / "tests"
SAMPLING = SamplingParams(max_tokens=3, temperature=0.7)
KINDS = {"full": None, "lora": LoraSettings(r=4)}


def stand_in(policy: Any, **options: Any) -> Any:
    """A server in a thread of this rank."""
    spec = importlib.util.spec_from_file_location("stand_in", PLUGIN_TESTS / "stand_in.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.StandIn(policy, **options)


def strategy_of(name: str, ranks: AcceleratedStrategy) -> Any:
    """One that divides weights."""
    if name == "fsdp":
        from rlhf_plugin_fsdp.config import FsdpConfig
        from rlhf_plugin_fsdp.strategy import Fsdp

        return Fsdp(FsdpConfig(device="cpu"), ranks)
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig
    from rlhf_plugin_deepspeed.stage3 import Zero3

    return Zero3(DeepSpeedConfig(stage=3, device="cpu"), ranks)


class Case:
    """A policy that two ranks divide, and a server that each has, or rank 0 alone."""

    def __init__(self, strategy: Any, folder: Path, lora: LoraSettings | None, *, shared: bool = False) -> None:
        self.strategy = strategy
        torch.manual_seed(0)
        whole = load_policy(ModelConfig(path=str(folder), lora=lora))
        starts = strategy.rank == 0 or not shared
        self.server: Any = stand_in(whole, lora_rank=4 if lora else 0) if starts else None
        self.bytes = tensor_bytes(whole.model.parameters())
        self.trained = tensor_bytes(p for p in whole.model.parameters() if p.requires_grad)
        self.largest = max(tensor_bytes([p]) for p in whole.model.parameters())
        self.layer = tensor_bytes(decoder_layers(whole.model)[0].parameters())
        self.root = self.bytes - sum(tensor_bytes(layer.parameters()) for layer in decoder_layers(whole.model))
        torch.manual_seed(0)
        policy = load_policy(ModelConfig(path=str(folder), lora=lora), weights=False)
        urls = [url for url in strategy.gather_objects(self.server and self.server.url) if url]
        ctx = make_context(policy=policy, strategy=strategy, rank=strategy.rank, world_size=2)
        config = VllmConfig(urls=tuple(urls), bucket_mib=1, retries=2)
        self.requests = [
            RolloutRequest(f"p{n}", tuple(policy.tokenizer.encode(f"What is {n} + 1?")), 0, n) for n in range(2)
        ]
        self.engine = VllmEngine(config, ctx)
        names = trained_names(policy.model)
        module = PolicyModule(policy.model, 0.8)
        settings = OnlineTrainerConfig(name="t", optimizer={"learning_rate": 1e-3})  # pyright: ignore
        prepared, optimizer = prepare_to_learn(strategy, module, settings.optimizer)
        cut = micro_batches_of_size(2)
        self.learner = Learner(
            prepared, GrpoClip(0.2, 0.2), strategy, settings, 10, micro_batcher=cut, optimizer=optimizer
        )
        self.policy = policy
        gathered = partial(strategy.gathered, prepared)
        self.sync = WeightSync(policy.model, gathered, None, self.engine, names, strategy)

    def update(self) -> None:
        """One update of the policy."""
        self.learner.update(items()[self.strategy.rank :: 2])

    def sampled(self, version: int) -> list[Any]:
        """What the servers answer."""
        return [r.completion_ids for r in self.engine.generate(self.requests, SAMPLING, version)]

    def wanted(self) -> tuple[list[Any], str]:
        """What the weights of a version would answer, and their digest; of rank 0's server, whose model is whole."""
        if self.server is None:
            return [], ""
        native = NativeEngine(self.server.model, self.policy.tokenizer, self.policy.context)
        return [r.completion_ids for r in native.generate(self.requests, SAMPLING, 0)], digest(self.server.model)

    def close(self) -> None:
        self.engine.close()
        if self.server is not None:
            self.server.close()
        if hasattr(self.strategy, "release"):
            self.strategy.release(self.learner.module)


def digest(model: torch.nn.Module) -> str:
    """Of all weights."""
    whole = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        whole.update(name.encode() + parameter.detach().numpy().tobytes())
    return whole.hexdigest()


def of_shards(case: Case) -> str:
    """Digest of the policy's weights as they are, gathered in another way; empty on other ranks than 0."""
    state = case.strategy.full_state(case.policy.model)
    names = [name for name, _ in case.policy.model.named_parameters()]
    whole = hashlib.sha256()
    for name in sorted(names) if case.strategy.rank == 0 else ():
        whole.update(name.encode() + state[name].numpy().tobytes())
    return whole.hexdigest() if case.strategy.rank == 0 else ""


def raised(call: Callable[[], object]) -> str:
    """Type and text of the error."""
    try:
        call()
    except RlhfError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def publishes(strategy: Any, folder: Path, kind: str) -> dict[str, Any]:
    """Versions arrive whole, written by rank 0 alone and from shards."""
    case, found = Case(strategy, folder, KINDS[kind]), dict[str, Any]()
    case.sync.sync(0)
    case.update()
    with LiveBytes() as live:
        case.sync.sync(1)
    gather = strategy.gather_objects
    found["peak"] = max(gather(live.peak))
    found |= {"weights": case.bytes, "trained": case.trained, "largest": case.largest, "layer": case.layer}
    found["root"] = case.root
    answers, weights = case.wanted()
    found["as the weights say"] = all(gather(case.sampled(1) == answers))
    want = of_shards(case)
    found["arrived"] = [mine == gather(want)[0] for mine in gather(weights)]
    current = case.engine.files.current
    assert current is not None
    found["label"], found["folder"] = (len(set(gather(part))) for part in (current.label, str(current.path)))
    found["bytes"] = current.size
    found["writers"] = gather(len(case.engine.files._written))
    if kind == "full":
        found |= disturbed(strategy, case)
    case.close()
    return found


def disturbed(strategy: Any, case: Case) -> dict[str, Any]:
    """After version 1: a server that comes back, and a disk that is full."""
    found, gather = dict[str, Any](), strategy.gather_objects
    case.update()
    second = case.sync.snapshot(2)
    case.update()
    third = case.sync.snapshot(3)
    case.sync.load(2, second)
    before = case.sampled(2)
    if strategy.rank == 1:
        case.server.fault = once_gone(case.server)
    found["brought back with its version"] = all(gather(case.sampled(2) == before))
    found["came back"] = gather(case.engine.fleet.counts["brought_back"])
    case.sync.load(3, third)
    strategy.gather_objects(None)
    folders = case.engine.files.folder
    case.update()
    with patch.object(Path, "write_bytes", side_effect=OSError(28, "No space left on device")):
        found["disk full"] = gather(raised(lambda: case.sync.snapshot(4)))
    found["kept"] = sorted(p.name.split("-")[0] for p in folders.glob("v*"))
    case.sync.sync(5)
    found["after that"] = all(gather(case.sampled(5) == case.wanted()[0]))
    return found


def once_gone(server: Any) -> Callable[[str, Any], Any]:
    """A fault that lasts until the server gets weights again."""

    def fault(path: str, body: Any) -> Any:
        if path == "/collective_rpc" or path.endswith("lora_adapter"):
            server.fault = None
        return 500 if path.endswith("generate") and server.fault is not None else None

    return fault


def shares(strategy: Any, folder: Path) -> dict[str, Any]:
    """Rank 1 asks the server of rank 0, which alone gives it weights."""
    case, found = Case(strategy, folder, None, shared=True), dict[str, Any]()
    gather = strategy.gather_objects
    case.sync.sync(0)
    case.update()
    case.sync.sync(1)
    answers = gather(case.wanted()[0])[0]
    found["as the weights say"] = all(gather(case.sampled(1) == answers))
    loads = case.server.calls.count("rlhf_load") if case.server else 0
    found["loads"] = gather(loads)
    if case.server is not None:
        case.server.fault = lambda path, body: 500 if path != "/is_paused" else None
    gather(None)
    if strategy.rank == 1:
        with patch("rlhf_plugin_vllm.sharing.COMING_BACK_S", 0.5):
            found["none left"] = raised(lambda: case.sampled(1))
        case.engine.fleet.retries_left = 99
    gather(None)
    if case.server is not None:
        case.server.fault = None
    found["back again"] = all(gather(case.sampled(1) == answers))
    case.update()
    if case.server is not None:
        case.server.fault = lambda path, body: {"results": []} if path == "/collective_rpc" else None
    found["not taken"] = gather(raised(lambda: case.sync.sync(2)))
    found["none left"] = next(row for row in gather(found.get("none left")) if row)
    case.close()
    return found


def main(out: str, name: str) -> None:
    """Every case."""
    fleet.RETRY_S = 0.05
    torch.set_num_threads(1)
    ranks, folder = AcceleratedStrategy(int(os.environ["WORLD_SIZE"]), "cpu", 100), Path(out).parent / "model"
    if ranks.rank == 0:
        write_model(folder, layers=6, size=256)
    ranks.barrier("the model")
    strategy = strategy_of(name, ranks)
    with patch.object(type(strategy), "gathered", side_effect=AssertionError("the weights were gathered")):
        found = {kind: publishes(strategy, folder, kind) for kind in KINDS} | {"shared": shares(strategy, folder)}
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(found, indent=1))
    ranks.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

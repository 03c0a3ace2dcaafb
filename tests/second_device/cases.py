"""Nothing of an update lies on the wrong device, and the learner reads values once per update, not per micro-batch.

Without a GPU: on a device that refuses to be mixed with the CPU and notes what waits for its values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import BlockMask

from rlhf_core.cli.options import open_plugins, resolve_options
from rlhf_core.distributed import optimizer as optimizer_module
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.distributed.optimizer import TorchOptimizer, fuses
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.layers.packing import BACKENDS, AttentionBackend
from rlhf_core.models.layers.segments import Segment
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.strategy_protocols import NormPart, OptimizerGroup, OptimizerPlan
from rlhf_core.training.config import OptimizerSettings
from rlhf_core.training.forward import PLAIN, ForwardOptions, completion_logprobs, structure
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import micro_batches_of_size
from rlhf_core.training.offline.config import OfflineTrainerConfig
from rlhf_core.training.trace import ExampleRecorder, TokenRecorder
from rlhf_plugin_preflight.device.forwards import possible_here, random_samples
from rlhf_plugin_preflight.memory.sizes import sizes_of
from rlhf_plugin_preflight.memory.update import _parts
from tests.second_device.accelerator import DEVICE, There, accelerator, move

ALLOWED = ("transformers/masking_utils.py", "rlhf_core/models/layers/trunk_and_head.py")
"""transformers asks of a padded batch whether several sequences lie in one row; we, once per model, what it allows."""
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "sft": ("trainer.sample_prompts=0",),
    "dpo": ("trainer.sample_prompts=0",),
    "reward_model": (),
    "grpo": ("trainer.kl.coefficient=0.1", "trainer.entropy_coefficient=0.01"),
    "grpo, importance": ("trainer.importance.mode=truncate",),
    "ppo": (),
}
ALIKE = {"sft", "reward_model", "grpo, importance"}
"""Whose updates go the ways of the others: one sequence of a pair, another term of the loss."""


@pytest.fixture(scope="module")
def pocket() -> LoadedModel:
    return load_policy(ModelConfig(path="pocket"))


def test_the_device_is_another_one() -> None:
    """What follows would prove nothing if this device forgave what CUDA does not."""
    with accelerator() as device:
        there = torch.arange(6.0, device=DEVICE).view(2, 3)
        assert there.device == DEVICE != torch.zeros(1).device
        with pytest.raises(RuntimeError, match="two devices"):
            there + torch.ones(3)
        assert isinstance(there * torch.tensor(2.0), There), "single numbers may come from the host"
        there[0, there[1] > 3] = 1.0
        assert len(device.waits) == 1, "a mask's places are counted on the host"
        assert there.sum().item() == 14.0
        assert there[:, 1:].cpu().tolist() == [[1.0, 1.0], [4.0, 5.0]]
        assert len(device.waits) == 3


@pytest.mark.parametrize("name", ["plain", "share_prefix", "packing", "chunked_head", "all"])
def test_forwards_stay_on_the_device(pocket: LoadedModel, name: str) -> None:
    possible = possible_here(structure(pocket.model))
    options = {"plain": PLAIN, "all": possible}.get(name) or possible.alone(name)
    here = logprobs_and_gradients(pocket, options)
    with accelerator() as device:
        there = logprobs_and_gradients(pocket, options, lambda: device.waits.clear())
        waits = unexpected(device.waits)
    assert not waits
    for a, b in zip(here, there, strict=True):
        assert float((a - b).abs().max()) <= 1e-4 * max(1.0, float(a.abs().max()))


def logprobs_and_gradients(
    loaded: LoadedModel, options: ForwardOptions, begun: Callable[[], None] | None = None
) -> list[torch.Tensor]:
    """On the other device if ``begun`` is given, which is called once the model is there and has been tried: what a
    model allows is found out once."""
    model = copy.deepcopy(loaded.model)
    samples = random_samples(loaded)
    prompts, completions = [s.prompt_ids for s in samples], [s.completion_ids for s in samples]
    if begun is not None:
        move(model)
        completion_logprobs(model, prompts, completions, entropy=True, **options.as_arguments)
        begun()
    out = completion_logprobs(model, prompts, completions, entropy=True, **options.as_arguments)
    assert out.entropy_BT is not None
    (out.logprobs_BT.sum() + out.entropy_BT.sum()).backward()
    found = [out.logprobs_BT, *(p.grad for p in model.parameters() if p.grad is not None)]
    return [t.host if isinstance(t, There) else t.detach() for t in found]


def unexpected(waits: list[str]) -> list[str]:
    return [wait for wait in waits if not any(where in wait for where in ALLOWED)]


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=pytest.mark.long if name in ALIKE else ()) for name in ALGORITHMS]
)
def test_an_update_waits_as_often_whatever_its_micro_batches(algorithm: str, pocket: LoadedModel) -> None:
    settings = ("trainer.micro_batch_size=4", "dataset.limit=40")
    registry, _ = open_plugins()
    names = {"algo": algorithm.split(",")[0], "model": "pocket"}
    run = resolve_options(registry, (), (*settings, *ALGORITHMS[algorithm]), names).config
    ctx = BuildContext(config=run, registry=registry, seed=0)
    sizes = sizes_of(run, ctx, pocket.context)

    def update(samples_each: int, there: bool) -> tuple[dict[str, float], list[torch.Tensor], dict[str, Any]]:
        fresh = ctx.with_(policy=load_policy(run.model), strategy=LocalStrategy())
        torch.manual_seed(0)  # the reward model's heads
        module, samples, loss, critic, rate = _parts(fresh, sizes)
        if there:
            move(module)
        batches = micro_batches_of_size(samples_each)
        learner = Learner(
            module, loss, LocalStrategy(DEVICE if there else "cpu"), run.trainer, 10, critic, rate, batches
        )
        if there:
            device.waits.clear()
        recorder: Any = ExampleRecorder() if isinstance(run.trainer, OfflineTrainerConfig) else TokenRecorder([], 0)
        recorder.names = {sample.name for sample in samples}
        metrics = learner.update(samples, observe=recorder)
        weights = [p.host if isinstance(p, There) else p.detach() for p in module.parameters()]
        return metrics, weights, recorder.rows

    def numbers(metrics: dict[str, float]) -> Any:
        return pytest.approx(metrics, rel=1e-3, abs=1e-4)

    here, weights, recorded = update(2, there=False)
    with accelerator() as device:
        waits: list[list[str]] = []
        for samples_each in (4, 1):
            there, other, rows = update(samples_each, there=True)
            waits.append(unexpected(device.waits))
            assert there == numbers(here)
            assert rows
            assert rows.keys() == recorded.keys()
            assert flat(rows) == pytest.approx(flat(recorded), rel=1e-3, abs=1e-4)
            assert max(float((a - b).abs().max()) for a, b in zip(weights, other, strict=True)) < 1e-3
    assert len(waits[0]) <= 4, waits[0]
    assert len(waits[0]) == len(waits[1]), waits


def flat(rows: Mapping[str, Mapping[str, Any]]) -> list[float]:
    """All numbers that a recorder kept, example by example."""
    values = [value for name in sorted(rows) for _, value in sorted(rows[name].items())]
    return [float(v) for value in values for v in (value if isinstance(value, list) else [value])]


def test_on_cuda_alone_one_kernel_makes_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU torch's fused step rounds otherwise than what earlier runs were made with."""
    here = torch.nn.Parameter(torch.zeros(3))
    with FakeTensorMode():
        there = torch.nn.Parameter(torch.zeros(3, device="cuda"))
        assert fuses([{"params": [there]}, {"params": [there]}])
        optimizer = torch.optim.AdamW([there], fused=True)
        assert optimizer.defaults["fused"]
    assert not fuses([{"params": [there]}, {"params": [here]}])
    adamw = OptimizerSettings(betas=(0.9, 0.999))
    plan = OptimizerPlan((OptimizerGroup(("weight",), 0.1, 0.0, False),), adamw.make)
    module = torch.nn.Linear(2, 1, bias=False)

    def stepped(optimizer: TorchOptimizer) -> TorchOptimizer:
        module(torch.ones(1, 2)).sum().backward()
        optimizer.step([NormPart("grad_norm", module)], 1.0)
        return optimizer

    plain = stepped(TorchOptimizer(LocalStrategy(), module, plan))
    assert not plain.inner.defaults["fused"]
    with monkeypatch.context() as patched:
        patched.setattr(optimizer_module, "fuses", lambda groups: True)
        fused = stepped(TorchOptimizer(LocalStrategy(), module, plan))
    assert fused.inner.defaults["fused"]
    for optimizer, other in ((plain, fused), (fused, plain)):
        optimizer.load_state_dict(other.state_dict())
        assert all(group["fused"] == optimizer.inner.defaults["fused"] for group in optimizer.inner.param_groups)
        stepped(optimizer)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("window", [None, 3])
def test_what_packed_attention_prepares_is_made_without_waiting(backend: AttentionBackend, window: int | None) -> None:
    """The operators need CUDA; what they are given, for all layers, is made of numbers that the host has."""
    with accelerator() as device:
        prepared = backend.prepare(
            [Segment((0, 5)), Segment((5, 7), (0, 5)), Segment((7, 140), (0, 5))], window, DEVICE
        )
        tensors = [value for value in vars(prepared).values() if isinstance(value, torch.Tensor)]
        assert len(tensors) >= 3
        assert all(isinstance(tensor, There) for tensor in tensors)
        if isinstance(prepared, BlockMask):
            edges = [cell.cell_contents for cell in prepared.mask_mod.__closure__ or ()]
            assert [type(edge) for edge in edges] == [There] * 3
        assert not device.waits

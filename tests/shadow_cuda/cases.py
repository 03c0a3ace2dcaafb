"""`rlhf` on a card, command by command: nothing mixes devices or is computed on the host, and the host waits no more
than it may. ``-s`` prints, case by case, where it waited."""

from __future__ import annotations

import io
import json
import math
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlhf_core.models import ModelConfig, load_policy
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_core.training import completion_logprobs
from rlhf_core.training.learner import Learner
from rlhf_plugin_native.decode import Decoder
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_preflight.memory.check import check_memory
from rlhf_plugin_preflight.memory.live import LiveBytes
from tests.shadow_cuda.cuda_api import DEVICE
from tests.shadow_cuda.device import there
from tests.shadow_cuda.recorder import RECORDER, Event, table

ONCE = {"structure", "can_pack", "has_linear_head", "decodes", "load_policy", "use_matmul_backend", "check_pooling"}
"""Functions that try something once per model or process, on a few tokens."""
MICRO_BATCH, UPDATE, MEASURE = "Learner._forward_backward", "Learner.update_sums", "Learner.measure"
DECODE = ("Decoder.run", "StreamDecoder.take")
STRIDE = 8
"""Tokens that are decoded between two waits, at least."""


class Ran:
    """What a command did: its output, what the card recorded, and how often the counted functions ran."""

    def __init__(self, out: str, events: Sequence[Event], counts: Counter[str], decodes: Sequence[int]) -> None:
        self.out, self.events, self.counts, self.decodes = out, events, counts, decodes

    def within(self, *names: str, kinds: Sequence[str] = ("wait", "copy")) -> list[Event]:
        """Events inside of any of these functions, without what is tried once."""
        rows = [e for e in self.events if e.kind in kinds and not ONCE & set(e.within)]
        return [e for e in rows if set(names) & set(e.within)]

    def check(self) -> None:
        """The budgets of the host."""
        products = [e for e in self.events if e.kind == "product" and not ONCE & set(e.within)]
        assert not products, lines(products)
        assert not (extra := self.within(MICRO_BATCH)), lines(extra)
        waits = [e for e in self.within(UPDATE) if MICRO_BATCH not in e.within]
        assert len(waits) <= 3 * self.counts[UPDATE], lines(waits)
        assert len(waits := self.within(MEASURE)) <= self.counts[MEASURE], lines(waits)
        budget = sum(math.ceil(steps / STRIDE) for steps in self.decodes)
        assert len(waits := self.within(*DECODE)) <= budget, lines(waits)


def lines(events: Sequence[Event]) -> str:
    return "\n".join(f"{count:5} {line}" for count, line in table(events))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """``run("train", ...)``: `rlhf` itself, in this process."""
    from rlhf_core.cli.main import main

    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "home"))
    counts: Counter[str] = Counter()
    decodes: list[int] = []

    def counted(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def function(self: Any, *args: Any, **kwargs: Any) -> Any:
            counts[f"{owner.__name__}.{name}"] += 1
            before = counts["Decoder._draw"]
            out = plain(self, *args, **kwargs)
            if name == "run":
                decodes.append(counts["Decoder._draw"] - before)
            return out

        monkeypatch.setattr(owner, name, function)

    for owner, name in ((Learner, "update_sums"), (Learner, "measure"), (Decoder, "_draw"), (Decoder, "run")):
        counted(owner, name)

    def call(*words: object, stdin: str = "", plans: bool = False) -> Ran:
        """``plans``: with the check of its memory, which takes longer than the runs of these sizes."""
        check = check_memory if plans else lambda context, force: None
        monkeypatch.setattr("rlhf_plugin_preflight.memory.check.check_memory", check)
        RECORDER.take()
        counts.clear()
        decodes.clear()
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as caught:
            main([str(word) for word in words])
        text, events = capsys.readouterr(), RECORDER.take()
        assert not caught.value.code, text.err
        ran = Ran(text.out, events, counts.copy(), tuple(decodes))
        with capsys.disabled():
            if "-s" in sys.argv:
                print(f"\nrlhf {' '.join(map(str, words))}\n{dict(counts)} {ran.decodes}\n{lines(events)}")
        return ran

    return call


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ensembles are trained once for all cases."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RLHF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_it_is_a_card_to_torch() -> None:
    """What follows would prove nothing if it forgave what CUDA does not, or recorded less."""
    assert torch.cuda.is_available()
    grid = torch.arange(6.0, device="cuda").view(2, 3)
    assert grid.device == DEVICE
    assert grid.is_cuda
    assert type(grid) is torch.Tensor
    with pytest.raises(RuntimeError, match="same device"):
        grid + torch.ones(3)
    with pytest.raises(TypeError, match=r"use Tensor\.cpu|Use Tensor\.cpu"):
        grid.numpy()
    assert there(grid * torch.tensor(2.0)), "single numbers may come from the host"
    RECORDER.take()
    assert grid[grid > 3].tolist() == [4.0, 5.0]
    torch.tensor([1, 2], device="cuda")
    torch.tensor([1, 2]).pin_memory().to("cuda", non_blocking=True)
    grid[grid > 3] = 0.0
    assert [e.kind for e in RECORDER.take()] == ["wait", "wait", "copy"], "a mask, a copy to the host, pageable memory"
    torch.ones(2, 2) @ torch.ones(2, 2)
    assert [e.kind for e in RECORDER.take()] == ["product"]


def test_it_has_a_random_state_and_autocast() -> None:
    torch.manual_seed(3)
    before, state = torch.get_rng_state(), torch.cuda.get_rng_state_all()
    first = torch.rand(4, device="cuda").cpu()
    assert torch.equal(before, torch.get_rng_state()), "the CPU's is another"
    torch.cuda.set_rng_state(state[0])
    assert torch.equal(torch.rand(4, device="cuda").cpu(), first)
    layer = torch.nn.Linear(3, 2).to("cuda")
    weight = layer.weight
    with torch.autocast("cuda", torch.bfloat16):
        out = layer(torch.ones(1, 3, device="cuda"))
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    torch.optim.AdamW(layer.parameters(), fused=True).step()
    assert layer.weight is weight is layer.cpu().weight, "parameters move in place"
    assert layer.weight.device.type == "cpu"


SIZES = {"steps": 2, "rollout_batch_size": 8, "train_batch_size": 8, "group_size": 4, "sampling.max_tokens": 16}
FEW = {"eval_samples": 4, "eval_every": 0, "gold_samples": 0, "checkpoint_every": 0}
ONLINE = {**SIZES, **FEW}
PAIRS = {"max_steps": 2, "batch_size": 4, "micro_batch_size": 2, "eval_samples": 4, "eval_every": 2}
OFFLINE = {**PAIRS, "sample_prompts": 2}
VERIFIER = ("--reward", "verifier", "--dataset", "pocket/arithmetic")
TINY = {"members": 2, "max_pairs": 16, "heldout_pairs": 4, "batch_size": 8, "micro_batch_size": 4}
ENSEMBLE = (
    "--reward",
    "ensemble",
    *(word for key, value in TINY.items() for word in ("--set", f"reward.{key}={value}")),
)


def train(folder: Path, algo: str, settings: dict[str, object], *more: str) -> tuple[str, ...]:
    words = [word for key, value in settings.items() for word in ("--set", f"trainer.{key}={value}")]
    return ("train", "--algo", algo, *more, *words, "--run-dir", str(folder), "--json")


def long(*case: object) -> Any:
    return pytest.param(*case, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("algo", "settings", "more"),
    [
        ("dpo", OFFLINE, ("--set", "model.gradient_checkpointing=selective")),
        ("grpo", ONLINE, VERIFIER),
        ("sft", OFFLINE, ("--set", "model.gradient_checkpointing=offload")),
        long("kto", OFFLINE, ()),
        long("prm", PAIRS, ()),
        long("grpo", ONLINE, ENSEMBLE),
        long("grpo", ONLINE, (*VERIFIER, "--set", "model.lora.r=4")),
        long("grpo", ONLINE, (*VERIFIER, "--set", "model.gradient_checkpointing=true")),
        long("grpo", {**ONLINE, "sampling.max_tokens": 40}, (*VERIFIER, "--set", "rollout.compile=true")),
        long("grpo", {**ONLINE, "rollouts.max_staleness": 1}, VERIFIER),
        long("ppo", ONLINE, (*ENSEMBLE, "--set", "advantage.critic.kind=shared")),
        long("ppo", ONLINE, (*VERIFIER, "--set", "advantage.critic.kind=separate")),
        long("iterative_dpo", {"steps": 1, "sampling.max_tokens": 16, **FEW}, ENSEMBLE),
    ],
)
def test_training(
    run: Callable[..., Ran], tmp_path: Path, algo: str, settings: dict[str, object], more: tuple[str, ...]
) -> None:
    ran = run(*train(tmp_path / "run", algo, settings, *more))
    assert ran.counts[UPDATE] >= 1
    if algo == "prm":  # transformers reads the mask of its padded rows
        ran.events = [e for e in ran.events if "transformers/masking_utils.py" not in e.inside]
    ran.check()
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["config"]["trainer"].get("precision", "bf16") == "bf16"


def test_a_run_is_resumed_bit_for_bit(run: Callable[..., Ran], tmp_path: Path) -> None:
    """From its first checkpoint, as if it had been killed in the second step."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    run(*train(whole, "sft", {**OFFLINE, "checkpoint_every": 1, "eval_every": 0})).check()
    shutil.copytree(whole, part, ignore=shutil.ignore_patterns("final", "summary.json", "step-000002"))
    run("train", "--resume", part).check()
    one, other = (load_file(folder / "final" / "model.safetensors") for folder in (whole, part))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.long
def test_its_memory_is_planned(run: Callable[..., Ran], tmp_path: Path) -> None:
    run(*train(tmp_path / "run", "sft", OFFLINE), plans=True).check()


@pytest.mark.parametrize("more", [(), ("--stop", "zq"), ("--engine-set", "compile=true")])
def test_generate(run: Callable[..., Ran], more: tuple[str, ...]) -> None:
    prompts = ("--prompt", "What is 2 + 3?", "--prompt", "Hi")
    ran = run("generate", *prompts, "--n", "2", "--max-tokens", "24", "--json", *more)
    assert [len(row["completions"]) for row in json.loads(ran.out)] == [2, 2]
    assert sum(ran.decodes) > STRIDE
    ran.check()


def test_what_is_sampled_is_what_the_cpu_samples() -> None:
    """Rows end by a stop string, by an end and by their limits between two looks at the card."""
    pocket = load_policy(ModelConfig(path="pocket"))
    prompts = [tuple(pocket.tokenizer.encode(text)) for text in ("What is 2 + 3?", "Hi", "Tell me a story.")]
    requests = [RolloutRequest(f"{n}", prompts[n % 3], 0, n, 4 + 4 * n) for n in range(9)]
    engine = NativeEngine(pocket.model, pocket.tokenizer, pocket.context, max_concurrent=5)
    free = engine.generate(requests, SamplingParams(max_tokens=40), 0)
    stop = tuple(sorted({r.text[5:7] for r in free if len(r.text) > 8}))
    for sampling in (SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, stop=stop, min_tokens=3)):
        pocket.model.to("cpu")
        here = engine.generate(requests, sampling, 0)
        pocket.model.to("cuda")
        over = NativeEngine(pocket.model, pocket.tokenizer, pocket.context, max_concurrent=5)
        for one, other in zip(here, over.generate(requests, sampling, 0), strict=True):
            assert (one.completion_ids, one.finish_reason) == (other.completion_ids, other.finish_reason)
            assert other.logprobs_T == pytest.approx(one.logprobs_T, abs=1e-4)
        pocket.model.to("cpu")
    assert {r.finish_reason.value for r in here} >= {"stop", "length"}


def test_models_that_score(run: Callable[..., Ran], tmp_path: Path) -> None:
    model = tmp_path / "reward"
    run(*train(model, "reward_model", PAIRS)).check()
    rows = [{"prompt": "What is 2 + 2?", "completion": text} for text in ("4", "It is 5.")]
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored = run("reward", "score", "--model", model, "--input", answers, "--json")
    scored.check()
    assert any(e.kind == "wait" for e in scored.events), "it was scored on the card"


@pytest.mark.long
def test_rewards_are_evaluated(run: Callable[..., Ran], tmp_path: Path) -> None:
    model = tmp_path / "reward"
    run(*train(model, "reward_model", PAIRS))
    run("reward", "evaluate", "--model", model, "--pairs", "pocket/assistant", "--limit", 8, "--probe", "none").check()


@pytest.mark.long
def test_chat_and_eval(run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where an evaluation is kept
    chat = run("chat", "pocket", "--max-tokens", 12, stdin="What is 2 + 3?\n")
    assert chat.out.strip()
    assert len(chat.within(*DECODE)) <= 12, "it shows each token as it is drawn"
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "What is 2 + 3?", "answer": "5"}) + "\n")
    run("eval", "prompts", "--model", "pocket", "--data", rows, "--verifier", "exact", "--limit", 1).check()


@pytest.mark.long
def test_doctor(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trainings are processes of their own."""
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root / 'tests/shadow_cuda/site'}:{root}")
    rows = json.loads(run("doctor", "--device", "cuda", "--ranks", 1, "--json").out)["rows"]
    assert not [row for row in rows if row["verdict"] in ("differs", "failed")], rows


def test_python_api() -> None:
    from rlhf_core.python_api.inference import generate, score

    RECORDER.take()
    assert len(generate("pocket", ["What is 2 + 3?"], n=2, max_tokens=8)[0]) == 2
    assert score([{"prompt": "2 + 2?", "answer": "4", "completion": "4"}], "verifier")[0].value == 1.0
    assert not [e for e in RECORDER.take() if e.kind == "product" and not ONCE & set(e.within)]


class CardBytes(LiveBytes):
    """Of what is alive on the card."""

    def _count(self, tensor: torch.Tensor, part: str | None = None) -> None:
        if there(tensor):
            super()._count(tensor, part)


def test_what_layers_are_given_waits_in_the_hosts_memory() -> None:
    """From forward to backward, by copies that nothing waits for; the gradient is the same to the last bit."""
    prompts, completions = [[5, 6, 7], [5, 6, 7], [8, 9]], [[1, 2], [3, 4, 5], [6]]
    held: list[int] = []
    gradients: list[list[torch.Tensor]] = []
    for kept in (True, "offload"):
        model = load_policy(ModelConfig(path="pocket", gradient_checkpointing=kept)).model.to("cuda")
        completion_logprobs(model, prompts, completions)  # what a model allows is tried once
        given: list[int] = []
        for layer in model.model.layers:
            layer.register_forward_pre_hook(lambda _, args, given=given: given.append(args[0].nbytes))
        RECORDER.take()
        with CardBytes() as live:
            total = completion_logprobs(model, prompts, completions).logprobs_BT.sum()
            held.append(live.total)
            total.backward()
        assert not [e for e in RECORDER.take() if e.kind in ("wait", "copy")]
        gradients.append([p.grad.cpu() for p in model.parameters()])
    assert held[0] - held[1] == sum(given[:4]) > 4 * 4 * 160 * 5
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_gradients_are_those_of_the_cpu() -> None:
    pocket = load_policy(ModelConfig(path="pocket"))
    prompts, completions = [[5, 6, 7], [5, 6, 7], [8, 9]], [[1, 2], [3, 4, 5], [6]]
    found: list[list[torch.Tensor]] = []
    for device in ("cpu", "cuda"):
        pocket.model.to(device).zero_grad()
        completion_logprobs(pocket.model, prompts, completions).logprobs_BT.sum().backward()
        found.append([p.grad.cpu() for p in pocket.model.parameters() if p.grad is not None])
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(*found, strict=True))

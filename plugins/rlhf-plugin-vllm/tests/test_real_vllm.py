"""The real vLLM, started by the engine from the environment of RLHF_VLLM_PYTHON."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rlhf_core.config import BuildContext, RlhfError
from rlhf_core.models.precision import set_precision
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_distill.server import TeacherServer
from rlhf_plugin_distill.teacher_config import TeacherSettings
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.connect import save_base
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_plugin_vllm.server import free_port, server_command, server_environment
from rlhf_testing import policy_context

from .conftest import sent_by_group

PYTHON = os.environ.get("RLHF_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="RLHF_VLLM_PYTHON names no interpreter of an environment with vLLM"),
]
SAMPLING = SamplingParams(max_tokens=24, temperature=0.7)
SERVER: dict[str, Any] = {
    "python": PYTHON,
    "arguments": ["--enforce-eager", "--max-num-seqs=32"],
    "environment": {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
    },
}


def requests_of(ctx: BuildContext, prompts: int = 6, seeds: int = 4) -> list[RolloutRequest]:
    encode = ctx.policy.tokenizer.encode
    texts = [f"What is {n} + {2 * n}?" + " Say why." * (n % 3) for n in range(prompts)]
    return [
        RolloutRequest(f"p{n}", tuple(encode(t)), s, 100 * n + s) for n, t in enumerate(texts) for s in range(seeds)
    ]


@pytest.fixture(scope="module")
def ctx() -> BuildContext:
    return policy_context()


@pytest.fixture(scope="module")
def engine(ctx: BuildContext) -> Iterator[VllmEngine]:
    built = VllmEngine(VllmConfig(**SERVER), ctx)
    yield built
    built.close()


def moved(ctx: BuildContext, seed: int) -> Any:
    """The policy with every weight moved by about 3 %, the embedding included."""
    model, draw = copy.deepcopy(ctx.policy.model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.03 * torch.randn(parameter.shape, generator=draw))
    return model


def trainer_gap(model: Any, rollouts: Any, temperature: float) -> float:
    """Largest difference of a logprob from the forward of transformers."""
    gaps = []
    for r in rollouts:
        ids = torch.tensor([[*r.prompt_ids, *r.completion_ids]])
        with torch.inference_mode():
            logits_TV = model(ids).logits[0, len(r.prompt_ids) - 1 : -1] / temperature
        own_T = torch.log_softmax(logits_TV, -1).gather(-1, ids[0, len(r.prompt_ids) :, None])[:, 0]
        gaps.append(float((own_T - torch.tensor(r.logprobs_T)).abs().max()))
    return max(gaps)


def test_logprobs_are_the_trainers_and_a_seed_is_the_same_alone_and_in_company(
    ctx: BuildContext, engine: VllmEngine
) -> None:
    engine.update_weights(0, dict(ctx.policy.model.named_parameters()))
    requests = requests_of(ctx)
    whole = engine.generate(requests, SAMPLING, 0)
    assert trainer_gap(ctx.policy.model, whole, 0.7) < 1e-4
    for n in range(0, len(requests), 5):
        alone = engine.generate([requests[n]], SAMPLING, 0)[0]
        assert alone.completion_ids == whole[n].completion_ids
    assert [r.completion_ids for r in engine.generate(requests, SAMPLING, 0)] == [r.completion_ids for r in whole]
    greedy = SamplingParams(max_tokens=24, temperature=0.0)
    native = NativeEngine(ctx.policy.model, ctx.policy.tokenizer, ctx.policy.context)
    for got, want in zip(engine.generate(requests[::4], greedy, 0), native.generate(requests[::4], greedy, 0)):
        assert (got.completion_ids, got.finish_reason, got.text) == (want.completion_ids, want.finish_reason, want.text)


def test_every_version_arrives_whole(ctx: BuildContext, engine: VllmEngine) -> None:
    for version in (1, 2):
        model = moved(ctx, version)
        engine.update_weights(version, dict(model.named_parameters()))
        rollouts = engine.generate(requests_of(ctx, 3, 2), SAMPLING, version)
        assert {r.policy_version for r in rollouts} == {version}
        assert trainer_gap(model, rollouts, 0.7) < 1e-4
    assert engine._report["vllm"]["canary_largest"] < 1e-4


def test_every_version_that_is_sent_by_gloo_arrives_whole(ctx: BuildContext, engine: VllmEngine) -> None:
    with sent_by_group(engine):
        for version in (3, 4, 5):
            model = moved(ctx, version)
            engine.update_weights(version, dict(model.named_parameters()))
            rollouts = engine.generate(requests_of(ctx, 3, 2), SAMPLING, version)
            assert {r.policy_version for r in rollouts} == {version}
            assert trainer_gap(model, rollouts, 0.7) < 1e-4
    assert engine._report["vllm"]["canary_largest"] < 1e-4
    assert engine._report["vllm"]["sync_bytes"] == sum(p.nbytes for p in ctx.policy.model.parameters())
    assert engine.fleet.counts["taken_out"] == 0


def test_it_teaches_a_student_of_another_tokenizer(ctx: BuildContext, engine: VllmEngine) -> None:
    engine.update_weights(3, dict(ctx.policy.model.named_parameters()))
    rollouts = engine.generate(requests_of(ctx, 2, 2), SAMPLING, 3)
    settings = TeacherSettings(url=engine.fleet.replicas[0].client.url, path="pocket", tokenizer="other")
    teacher = TeacherServer(settings)
    teacher.check(ctx.policy.tokenizer)
    said = teacher.at_once(teacher.chosen, [(r.prompt_ids, r.completion_ids) for r in rollouts])
    assert teacher.context == ctx.policy.context
    taught = [replace(r, logprobs_T=np.array(row, np.float32)) for r, row in zip(rollouts, said)]
    assert trainer_gap(ctx.policy.model, taught, 1.0) < 1e-4


@pytest.mark.long
def test_vllms_own_reload_keeps_a_tied_head_and_the_canary_sees_it(
    ctx: BuildContext, engine: VllmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = moved(ctx, 7)
    weights = dict(model.named_parameters())
    save_base(type(ctx.policy)(model, ctx.policy.tokenizer, "x", ctx.policy.context), tmp_path)

    def plain_reload(method: str, *_: str, seconds: float) -> list[Any]:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}
        return engine.fleet.replicas[0].client.post("/collective_rpc", body, seconds) or []

    monkeypatch.setattr(engine.fleet.replicas[0].client, "rpc", plain_reload)
    with pytest.raises(RlhfError, match="has other weights than version 9"):
        engine.update_weights(9, weights)
    monkeypatch.undo()
    engine.update_weights(10, weights)


@pytest.mark.long
def test_in_bfloat16_small_updates_are_accepted_and_one_that_is_ignored_is_found(
    ctx: BuildContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = replace(ctx.policy, model=copy.deepcopy(ctx.policy.model))
    set_precision(policy.model, "bf16")
    draw = torch.Generator().manual_seed(0)
    weights = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    engine = VllmEngine(VllmConfig(**SERVER), ctx.with_(policy=policy))
    try:
        assert engine.fleet.replicas[0].dtype == "bfloat16"
        for version in range(24):
            engine.update_weights(version, weights)
            weights = {n: w + 1e-5 * torch.randn(w.shape, generator=draw).sign() for n, w in weights.items()}
        monkeypatch.setattr(engine.fleet.replicas[0].client, "rpc", lambda *_, **__: [])
        with pytest.raises(RlhfError, match=r"version 24, .*are those of an earlier version"):
            engine.update_weights(24, weights)
    finally:
        engine.close()


@pytest.mark.long
def test_a_killed_server_is_started_again_and_serves_the_same(ctx: BuildContext, engine: VllmEngine) -> None:
    engine.update_weights(11, dict(moved(ctx, 3).named_parameters()))
    requests = requests_of(ctx, 2, 2)
    undisturbed = [r.completion_ids for r in engine.generate(requests, SAMPLING, 11)]
    process: Any = engine.fleet.replicas[0].process
    os.kill(process._process.pid, signal.SIGTERM)
    process._process.wait(60)
    assert [r.completion_ids for r in engine.generate(requests, SAMPLING, 11)] == undisturbed
    assert engine.fleet.counts["brought_back"] == 1


def servers() -> set[str]:
    """Processes of servers on this machine."""
    return set(subprocess.run(["pgrep", "-f", "rlhf-vllm-"], capture_output=True, text=True).stdout.split())


def train_command(run: Path, *more: str) -> list[str]:
    """A run of two steps with servers of its own."""
    settings = ["rollout.name=vllm", "trainer.steps=2", "trainer.eval_samples=2", "trainer.group_size=4", "threads=1"]
    settings += ["trainer.rollout_batch_size=8", "trainer.sampling.temperature=0.7", f"rollout.python={PYTHON}"]
    settings += [f"rollout.arguments={SERVER['arguments']}".replace("'", '"')]
    settings += [f"rollout.environment.{name}='{value}'" for name, value in SERVER["environment"].items()]
    words = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic"]
    words += [word for setting in (*settings, *more) for word in ("--set", setting)]
    return [sys.executable, "-m", "rlhf_core.cli.main", "train", *words, "--run-dir", str(run)]


@pytest.mark.long
@pytest.mark.parametrize("lora", [[], ["model.lora.r=4"]], ids=["full", "lora"])
def test_grpo_trains_with_it_and_leaves_nothing_running(tmp_path: Path, lora: list[str]) -> None:
    others, run = servers(), tmp_path / "run"
    result = subprocess.run(train_command(run, *lora), capture_output=True, text=True, timeout=800)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "summary.json" in {p.name for p in run.iterdir()}
    time.sleep(1)
    assert not servers() - others


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until a server answers."""
    ends = time.monotonic() + 400
    while time.monotonic() < ends:
        assert server.poll() is None, log.read_text()[-4000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.5)
    raise AssertionError(f"it does not answer: {log.read_text()[-4000:]}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("rank", "transport"), [(0, "files"), (4, "files"), (0, "gloo")], ids=["full", "lora", "full by gloo"]
)
def test_two_ranks_that_divide_the_policy_share_a_server(tmp_path: Path, rank: int, transport: str) -> None:
    model, port, run, log = tmp_path / "model", free_port(), tmp_path / "run", tmp_path / "server.log"
    policy = policy_context().policy
    save_base(policy, model)
    words = server_command(PYTHON, model, "float32", policy.context, rank, SERVER["arguments"])
    environment = {**os.environ, **server_environment(tmp_path), **SERVER["environment"]}
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*words, "--port", str(port)], env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_for(f"http://127.0.0.1:{port}", server, log)
        settings = ["strategy=fsdp", f"model.path={model}", f"rollout.urls=[http://127.0.0.1:{port}]"]
        settings += ["rollout.python=null", f"rollout.transport={transport}", *(["model.lora.r=4"] if rank else [])]
        command = [*train_command(run, *settings), "--nproc", "2"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=800)
        assert result.returncode == 0, result.stdout + result.stderr
        report = json.loads((run / "summary.json").read_text())["reports"]["vllm"]
        assert report["syncs"] == 3
        assert report["canary_largest"] < 1e-4
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)


def running_requests(port: str) -> float:
    """How many completions a server samples now; 0 where it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            rows = answer.read().decode().splitlines()
    except OSError:
        return 0.0
    return sum(float(row.split()[-1]) for row in rows if row.startswith("vllm:num_requests_running"))


def kill_one_in_a_request(others: set[str], running: subprocess.Popen[str]) -> None:
    """SIGKILL one of two servers, with all that it started, while it samples for the trainer."""
    while running.poll() is None:
        for pid in servers() - others:
            words = words_of(pid)
            leads = "--port" in words and "supervise" not in words[1] and os.getpgid(int(pid)) == int(pid)
            if leads and running_requests(words[words.index("--port") + 1]) >= 2:
                os.killpg(int(pid), signal.SIGKILL)
                return
        time.sleep(0.02)
    raise AssertionError("the run ended before a server could be killed")


def words_of(pid: str) -> list[str]:
    """A process's command; empty where it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return []


@pytest.mark.long
def test_a_run_whose_server_is_killed_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    results, settings = [], ("rollout.replicas=2", "trainer.steps=4", "trainer.eval_samples=0")
    for name in ("undisturbed", "disturbed"):
        others, command = servers(), train_command(tmp_path / name, *settings)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
            if name == "disturbed":
                kill_one_in_a_request(others, running)
            text = running.communicate(timeout=400)[0]
        assert running.returncode == 0, text
        results.append(json.loads((tmp_path / name / "summary.json").read_text())["reports"]["vllm"]["servers"])
    assert results == [{"taken_out": 0, "brought_back": 0}, {"taken_out": 1, "brought_back": 1}]
    one, two = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("undisturbed", "disturbed"))
    gap = max(float((one[name] - two[name]).abs().max()) for name in one)
    assert gap <= 1e-6, "as in another batch of the server: equal to rounding"

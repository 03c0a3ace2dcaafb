"""`rlhf train` with servers of its own, one of which dies, hangs or fails: the run ends with the same weights.

The servers are processes that speak vLLM's calls, with the native engine behind them.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlhf_core.models import ModelConfig, load_policy
from rlhf_core.models.save import save_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
_spec = importlib.util.spec_from_file_location("server_process", Path(__file__).with_name("server_process.py"))
assert _spec is not None
assert _spec.loader is not None
servers: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(servers)

SETTINGS = (
    "threads=1", "dataset.limit=64", "trainer.steps=3", "trainer.group_size=4", "trainer.rollout_batch_size=8",
    "trainer.eval_samples=0", "trainer.checkpoint_every=0", "trainer.sampling.max_tokens=8",
    "trainer.sampling.temperature=1.5",
    "rollout.name=vllm", "reward.mode=continuous", "reward.length={max: 1, zero_at: 9}",
)  # fmt: skip
OWN = ("rollout.replicas=1", "rollout.environment.VLLM_CPU_KVCACHE_SPACE='1'")
LONG = pytest.mark.long
CANARY = range(1000, 1008)
LOADS = ("rlhf_load", "rlhf_receive")


class Run:
    """A run over servers whose calls are in ``folder``: its own, or one that is given."""

    def __init__(self, folder: Path, *settings: str, url: str = "") -> None:
        self.folder, self.path = folder, folder / "run"
        where = (f"rollout.urls=[{url}]",) if url else (f"rollout.python={servers.environment(folder)}", *OWN)
        self.settings = (*SETTINGS, *where, *settings)

    def train(self, *more: str) -> subprocess.CompletedProcess[str]:
        words = ["--algo", "grpo", "--reward", "programmatic", "--dataset", "pocket/arithmetic"]
        words += [word for setting in self.settings for word in ("--set", setting)]
        return self._rlhf(*words, *more, "--run-dir", str(self.path))

    def resume(self) -> subprocess.CompletedProcess[str]:
        return self._rlhf("--resume", str(self.path))

    def _rlhf(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=400)

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.path / "summary.json").read_text())["reports"]["vllm"]

    @property
    def servers(self) -> dict[str, int]:
        return self.report["servers"]

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.path / "final" / "model.safetensors")

    @property
    def asked(self) -> set[tuple[int, str]]:
        """(Seed, version) of every completion."""
        return {(r["seed"], version_of(r)) for r in completions(servers.calls(self.folder))}


def completions(rows: Any) -> list[dict[str, Any]]:
    return [r for r in rows if r["seed"] is not None and r["seed"] not in CANARY]


def version_of(row: dict[str, Any]) -> str:
    return row["weights"].split(":")[-1]


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def largest_gap(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - two[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("undisturbed")
    server = servers.stand_in()(load_policy(ModelConfig(path="pocket")), fault=servers.Faults(folder))
    run = Run(folder, url=server.url)
    result = run.train()
    server.close()
    assert result.returncode == 0, result.stdout + result.stderr
    assert run.servers == {"taken_out": 0, "brought_back": 0}
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "grad_norm" in row]
    assert min(row["grad_norm"] for row in steps) > 0, "every step changes the weights"
    assert {row["sync/bytes"] for row in steps} == {run.report["sync_bytes"]}
    assert sum(row["sync/seconds"] for row in steps) == pytest.approx(run.report["sync_seconds"], abs=0.01)
    return run


@pytest.mark.long  # one server that is killed: below; of several in one process: test_faults.py
@pytest.mark.parametrize(
    ("fault", "settings"),
    [
        ({"path": "generate", "after": 5, "do": "kill"}, ()),
        ({"path": "generate", "after": 5, "do": "hang"}, ("rollout.request_s=15",)),
        ({"path": "rlhf_load", "after": 1, "do": "fail"}, ()),
        ({"path": "rlhf_receiving", "after": 1, "do": "kill"}, ("rollout.transport=gloo",)),
    ],
    ids=["killed in a request", "hung", "failing an update", "killed while it is sent weights"],
)
def test_a_disturbed_run_ends_with_the_same_weights(
    undisturbed: Run, tmp_path: Path, fault: dict[str, Any], settings: tuple[str, ...]
) -> None:
    run = Run(tmp_path, "rollout.replicas=2", *settings)
    servers.order(tmp_path, {**fault, "times": 1})
    result = run.train()
    assert result.returncode == 0, result.stdout + result.stderr
    assert run.servers == {"taken_out": 1, "brought_back": 1}
    assert equal(run.weights, undisturbed.weights)
    assert run.asked == undisturbed.asked, "what the server owed went elsewhere with the same seeds"
    rows = servers.calls(tmp_path)
    pids = list(dict.fromkeys(r["pid"] for r in rows))
    assert len(pids) == 3, "two servers, and one that was started anew"
    began = [r for r in rows if r["pid"] == pids[2]]
    served = completions(began)
    assert served, "the new one serves"
    before = began[: began.index(served[0])]
    current = version_of(before[-1])
    assert [r["call"] for r in before if r["call"] in LOADS] in [[call] for call in LOADS]
    assert [r["seed"] for r in before if r["seed"] is not None and version_of(r) == current] == list(CANARY)
    for pid in pids[:2]:
        loads = [n for n, r in enumerate(rows) if r["pid"] == pid and r["call"] in LOADS]
        if fault["path"] == "rlhf_load" and len(loads) == 2:  # the one that failed: it was given version 0 alone
            assert not completions(r for r in rows[loads[1] :] if r["pid"] == pid)


def test_when_restarts_are_used_up_the_run_saves_says_so_and_resumes_to_the_same_weights(
    undisturbed: Run, tmp_path: Path
) -> None:
    run = Run(tmp_path, "rollout.retries=1")
    servers.order(tmp_path, {"path": "generate", "after": 8, "do": "kill", "times": 99})
    result = run.train()
    text = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1, text
    assert "no vLLM server is left, and no retry (1 were made); everything up to step 2 is saved" in text
    assert f"rlhf train --resume {run.path}" in text
    pids = {r["pid"] for r in servers.calls(tmp_path)}
    assert len(pids) == 2, "one server, one restart"
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "nothing is left running"
    (tmp_path / "faults.json").unlink()
    result = run.resume()
    assert result.returncode == 0, result.stdout + result.stderr
    assert equal(run.weights, undisturbed.weights)
    assert run.asked == undisturbed.asked


@pytest.mark.long  # the same with shards: below
def test_on_two_ranks_each_has_a_server_of_its_own(undisturbed: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    result = run.train("--nproc", "2")
    assert result.returncode == 0, result.stdout + result.stderr
    assert len({r["pid"] for r in servers.calls(run.folder)}) == 2
    assert run.asked == undisturbed.asked
    assert largest_gap(run.weights, undisturbed.weights) < 1e-4


@pytest.mark.parametrize(
    ("transport", "path", "after"), [("files", "generate", 5), pytest.param("gloo", "rlhf_receiving", 1, marks=LONG)]
)
def test_a_server_that_is_killed_gets_its_version_from_shards(
    undisturbed: Run, tmp_path: Path, transport: str, path: str, after: int
) -> None:
    policy = load_policy(ModelConfig(path="pocket"))
    save_model(policy.model, policy.tokenizer, tmp_path / "model")
    cards = "rollout.environment.CUDA_VISIBLE_DEVICES='4,5'"
    divided = Run(
        tmp_path / "fsdp", "strategy=fsdp", f"model.path={tmp_path / 'model'}", cards, f"rollout.transport={transport}"
    )
    servers.order(divided.folder, {"path": path, "after": after, "do": "kill", "times": 1})
    result = divided.train("--nproc", "2")
    assert result.returncode == 0, result.stdout + result.stderr
    each = {r["pid"]: r["cards"] for r in servers.calls(divided.folder)}
    assert sorted(each.values()) in (["4", "4", "5"], ["4", "5", "5"]), "one was started anew, on its card"
    assert divided.asked == undisturbed.asked
    assert largest_gap(divided.weights, undisturbed.weights) < 1e-4


def test_a_server_that_samples_at_another_temperature_ends_the_run_before_its_first_step(tmp_path: Path) -> None:
    def hotter(path: str, body: Any) -> None:
        if path.endswith("generate") and "temperature" in body["sampling_params"]:
            body["sampling_params"]["temperature"] *= 1.1

    server = servers.stand_in()(load_policy(ModelConfig(path="pocket")), fault=hotter)
    result = Run(tmp_path, url=server.url).train()
    server.close()
    text = result.stdout + result.stderr
    assert result.returncode == 2, text
    assert not (tmp_path / "run" / "final").exists()
    assert "temperature" in text, text


@pytest.mark.parametrize("ahead", [True, False])
def test_syncs_of_batches_that_wait_in_a_buffer_are_in_the_metrics(tmp_path: Path, ahead: bool) -> None:
    more = ("rollouts.max_staleness=1", *(() if ahead else ("rollouts.max_reads=2", "rollouts.capacity=0")))
    server = servers.stand_in()(load_policy(ModelConfig(path="pocket")))
    run = Run(tmp_path, *(f"trainer.{setting}" for setting in more), url=server.url)
    result = run.train()
    server.close()
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    told = sum(row.get("sync/bytes", 0.0) for row in rows)
    assert told == run.report["syncs"] * run.report["sync_bytes"]

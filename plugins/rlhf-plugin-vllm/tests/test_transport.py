"""Weights go from process to process over groups of their own, and no side waits for another that is gone."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_core.config import BuildContext, ConfigError, RlhfError
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_vllm import weight_group
from rlhf_plugin_vllm.checks import check_group
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_plugin_vllm.transport import stored_weights
from rlhf_plugin_vllm.weight_group import GroupError, Receiver, Sender
from rlhf_plugin_vllm.worker import DIGESTS

CPU = torch.device("cpu")
WORKER = """
import json, os, sys, torch
from safetensors.torch import save_file
from rlhf_plugin_vllm.weight_group import Receiver
told, number, file, dies = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "dies"
group, weights = Receiver(json.loads(told), number, torch.device("cpu")), {}
for name, weight in group.weights():
    weights[name] = weight.clone()
    if dies:
        os._exit(1)
save_file(weights, file)
"""


def some_weights() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"large": (300, 100), "one": (1,), "odd": (7, 3), "second": (90, 100), "scalar": ()}
    weights = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return {**weights, "ids": torch.arange(9), "half": torch.randn(5, generator=draw).bfloat16()}


def sender_of(workers: int, seconds: float = 20.0) -> Sender:
    return Sender("gloo", "127.0.0.1", workers, seconds, CPU)


def process_of(sender: Sender, number: int, file: Path, dies: str = "") -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WORKER, sender.address.to_json(), str(number), str(file), dies]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def receiving(
    sender: Sender, number: int = 0, into: dict[str, torch.Tensor] | None = None
) -> tuple[threading.Thread, list[BaseException]]:
    """A worker in a thread, and what it ends with."""
    raised: list[BaseException] = []

    def receive() -> None:
        group = Receiver(json.loads(sender.address.to_json()), number, CPU)
        try:
            ({} if into is None else into).update(group.weights())
        except GroupError as error:
            raised.append(error)
        finally:
            group.close()

    thread = threading.Thread(target=receive)
    thread.start()
    return thread, raised


def test_two_processes_are_sent_all_weights_in_buckets(tmp_path: Path) -> None:
    weights, sender, file = some_weights(), sender_of(2), tmp_path / "weights.safetensors"
    worker = process_of(sender, 0, file)
    thread, raised = receiving(sender, 1, here := {})
    sender.join(lambda: worker.poll() is not None)
    sent = sender.send(weights.items(), 4096)
    assert sender._buckets == 4 + 1, "large and second alone, what is between and after them together, and the end"
    assert worker.wait(30) == 0, worker.stderr
    worker.communicate()
    thread.join(30)
    sender.close()
    assert sent == sum(weight.nbytes for weight in weights.values())
    for got in (load_file(file), here):
        assert got.keys() == weights.keys()
        assert all(torch.equal(got[name], weight) for name, weight in weights.items())
    assert not raised


def test_a_worker_that_dies_between_two_buckets_ends_the_senders_wait(tmp_path: Path) -> None:
    sender = sender_of(1, seconds=600.0)
    worker = process_of(sender, 0, tmp_path / "none", "dies")
    sender.join(lambda: worker.poll() is not None)
    with pytest.raises(GroupError, match=r"(?i)clos|reset|pipe"):
        sender.send(some_weights().items(), 4096)
    worker.communicate()
    sender.close()


def test_a_worker_waits_for_no_trainer_that_is_gone_and_hears_why_one_stops() -> None:
    sender = sender_of(1, seconds=600.0)
    thread, raised = receiving(sender)
    sender.join(lambda: not thread.is_alive())
    sender.close()
    thread.join(20)
    assert len(raised) == 1

    def broken() -> Any:
        yield "first", torch.ones(3)
        raise OSError("the disk is gone")

    sender = sender_of(1, seconds=600.0)
    thread, raised = receiving(sender)
    sender.join(lambda: not thread.is_alive())
    with pytest.raises(OSError, match="the disk is gone"):
        sender.send(broken(), 4096)
    thread.join(20)
    sender.close()
    assert "the disk is gone" in str(raised[0])


def test_workers_that_do_not_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = sender_of(1)
    with pytest.raises(GroupError, match=r"its workers did not come to 127\.0\.0\.1:"):
        sender.join(lambda: True)
    monkeypatch.setattr(weight_group, "JOIN_S", 0.3)
    late = replace(sender.address, token="of a version before")
    with pytest.raises(GroupError):
        Receiver(json.loads(late.to_json()), 0, CPU)
    with pytest.raises(GroupError, match=r"within 0\.3 s"):
        sender.join(lambda: False)


def test_stored_weights_are_those_of_all_files(tmp_path: Path) -> None:
    save_file({"b": torch.ones(2)}, tmp_path / "00001.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "00000.safetensors")
    assert [(name, weight.tolist()) for name, weight in stored_weights(tmp_path)] == [("a", [0, 0]), ("b", [1, 1])]


@pytest.mark.parametrize("lost", ["all", "one", "half"])
def test_stored_weights_that_are_not_whole_are_not_sent_as_if_they_were(lost: str, tmp_path: Path) -> None:
    names = [f"0000{n}.safetensors" for n in range(2)]
    for n, name in enumerate(names):
        save_file({f"w{n}": torch.zeros(9)}, tmp_path / name)
    if lost != "all":
        (tmp_path / DIGESTS).write_text(json.dumps(dict.fromkeys(names, "")))
    for name in names[:1] if lost == "one" else names if lost == "all" else ():
        (tmp_path / name).unlink()
    if lost == "half":
        (tmp_path / names[1]).write_bytes((tmp_path / names[1]).read_bytes()[:-8])
    with pytest.raises(OSError):
        list(stored_weights(tmp_path))


def wait_for(said: list[str]) -> str:
    ends = threading.Event()
    while not said:
        ends.wait(0.01)
    return said[0]


def moved(ctx: BuildContext, version: int) -> dict[str, Any]:
    return {n: p.detach() + 0.002 * version for n, p in ctx.policy.model.named_parameters() if p.requires_grad}


@pytest.mark.slow
def test_servers_are_sent_each_version_and_see_no_folder_of_the_trainer(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    servers = [serve(), serve()]
    for server in servers:
        server.rlhf_load = lambda *_: pytest.fail("files are not read")
    engine = engine_of(*servers, transport="gloo", bucket_mib=1)
    for version in (1, 2, 3):
        weights = moved(ctx, version)
        engine.update_weights(version, weights)
        for server in servers:
            own = dict(server.model.named_parameters())
            assert all(torch.equal(own[name], weight) for name, weight in weights.items())
    request = RolloutRequest("p", tuple(ctx.policy.tokenizer.encode("What is 4 + 4?")), 0, 5)
    assert engine.generate([request], SamplingParams(max_tokens=3), 3)[0].policy_version == 3
    metrics = engine.sync_metrics()
    assert metrics["sync/bytes"] == 4 * sum(w.nbytes for w in moved(ctx, 1).values())
    assert metrics["sync/seconds"] > 0
    assert engine.fleet.counts == {"taken_out": 0, "brought_back": 0}


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["files", "gloo"])
def test_numbers_go_in_the_servers_type_where_all_of_its_weights_have_it(
    transport: str, ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    for dtypes, size in ((["bfloat16"], 2), (["bfloat16", "float32"], 4)):
        server = serve(dtype="bfloat16", dtypes=dtypes)
        engine = engine_of(server, transport=transport, canary_tolerance=1.0)
        names = 32_000 if transport == "files" else 0
        assert (
            0 <= engine._report["vllm"]["sync_bytes"] - size * sum(w.numel() for w in moved(ctx, 0).values()) <= names
        )
        own, sent = dict(server.model.named_parameters()), moved(ctx, 0)
        rounded = {name: weight.to(getattr(torch, dtypes[-1])).float() for name, weight in sent.items()}
        assert all(torch.equal(own[name], weight) for name, weight in rounded.items())


def test_a_record_that_is_gone_ends_the_run_and_the_worker_hears_of_it(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    engine = engine_of(server, transport="gloo")
    heard, receive = list[str](), server.rlhf_receive

    def receives(told: str) -> Any:
        for file in engine.files.folder.glob("v1-*/*.safetensors"):
            file.unlink()
            file.mkdir()
        try:
            return receive(told)
        except GroupError as error:
            heard.append(str(error))
            raise

    server.rlhf_receive = receives
    with pytest.raises(RlhfError, match=r"version 1 of the weights cannot be read from"):
        engine.update_weights(1, moved(ctx, 1))
    assert "the trainer could not send all weights" in wait_for(heard)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before it takes weights", "while it takes weights"])
def test_a_server_that_lost_its_group_gets_the_version_over_another(
    when: str,
    ctx: BuildContext,
    serve: Callable[..., Any],
    engine_of: Callable[..., VllmEngine],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("rlhf_plugin_vllm.fleet.RETRY_S", 0.01)
    server, failures = serve(), [1]
    engine, receive = engine_of(server, transport="gloo", bucket_mib=1), server.rlhf_receive

    def fails_once(told: str) -> Any:
        if not failures:
            return receive(told)
        failures.pop()
        if when.startswith("while"):
            group = Receiver(json.loads(told), 0, CPU)
            next(group.weights())
            group.close()
        raise RuntimeError("a worker's own reason")

    server.rlhf_receive = fails_once
    with caplog.at_level(logging.WARNING, "rlhf.vllm"):
        engine.update_weights(1, moved(ctx, 1))
    assert "a worker's own reason" in caplog.text
    assert engine.fleet.counts == {"taken_out": 1, "brought_back": 1}
    assert torch.equal(dict(server.model.named_parameters())["model.norm.weight"], moved(ctx, 1)["model.norm.weight"])


@pytest.mark.slow
def test_a_server_that_hangs_in_an_update_is_taken_out_at_its_deadline(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_plugin_vllm.transport.REASON_S", 0.1)
    well, hung, over = serve(), serve(), threading.Event()
    engine = engine_of(well, hung, transport="gloo", update_s=2.0, retries=0)

    def hang(told: str) -> Any:
        group = Receiver(json.loads(told), 0, CPU)
        next(group.weights())
        over.wait(60)
        group.close()

    hung.rlhf_receive = hang
    try:
        engine.update_weights(1, moved(ctx, 1))
    finally:
        over.set()
    assert [replica.out != "" for replica in engine.fleet.replicas] == [False, True]


def test_auto_takes_gloo_where_a_server_is_far_and_no_folder_is_named(tmp_path: Path) -> None:
    far: dict[str, Any] = {"urls": ("http://10.0.0.9:8000", "http://127.0.0.1:1")}
    assert VllmConfig(**far).chosen_transport() == "gloo"
    assert VllmConfig(**far, sync_dir=tmp_path).chosen_transport() == "files"
    assert VllmConfig(urls=("http://localhost:1",)).chosen_transport() == "files"
    with pytest.raises(ValueError, match="transport"):
        VllmConfig.model_validate({"transport": "tcp"})


@pytest.mark.parametrize(
    ("facts", "backend", "words"),
    [
        ({"workers": [0, 0], "cards": ["", ""]}, "gloo", "does not answer for all of its workers"),
        ({"workers": [0], "cards": [""]}, "nccl", "computes on CPUs"),
        ({"workers": [0], "cards": ["GPU-1"]}, "nccl", "the trainer computes on a CPU"),
    ],
)
def test_servers_that_no_group_reaches_are_refused(facts: Any, backend: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_group(facts, "http://a:1", backend, CPU)
    assert words in f"{caught.value} {caught.value.why}"

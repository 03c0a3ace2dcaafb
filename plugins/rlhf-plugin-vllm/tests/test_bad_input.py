"""Servers and settings that a run could not be right with: exit code 2, before training."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_core.config import BuildContext, ConfigError, UserError
from rlhf_core.models import ModelConfig
from rlhf_core.training import SamplingSettings
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.server import free_port
from rlhf_plugin_vllm.sync_folder import make_sync_folder


def plan(lora: dict[str, Any] | None = None, **sampling: Any) -> Any:
    trainer = SimpleNamespace(sampling=SamplingSettings(**sampling))
    config = SimpleNamespace(trainer=trainer, model=ModelConfig.model_validate({"lora": lora}))
    return SimpleNamespace(config=config, world_size=1, rank=0)


@pytest.mark.parametrize(
    ("options", "settings", "words"),
    [
        ({"version": "0.9.1"}, {}, "this engine was not tested with vLLM 0.9.1"),
        ({"logprobs_mode": "raw_logprobs"}, {}, "--logprobs-mode processed_logprobs"),
        ({"protocol": 0}, {}, "another version of the extension"),
        ({}, {"lora": {"r": 8}}, "takes no adapters"),
        ({"lora_rank": 4}, {"lora": {"r": 8}}, "adapters up to rank 4"),
        ({}, {"min_tokens": 3}, "min_tokens"),
    ],
)
def test_a_server_is_refused_before_a_model_is_loaded(
    serve: Callable[..., Any], options: Any, settings: Any, words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        VllmConfig(urls=(serve(**options).url,)).preflight(plan(**settings))
    assert caught.value.exit_code == 2


def test_weights_arrive_in_flight_only_where_rollouts_are_sampled_ahead(serve: Callable[..., Any]) -> None:
    config, run = VllmConfig(urls=(serve().url,), in_flight=True), plan()
    with pytest.raises(ConfigError, match="samples and learns in turn"):
        config.preflight(run)
    run.config.trainer.batches_ahead = 1
    config.preflight(run)
    assert "not exactly reproducible" in config.conditions()["in_flight"]
    assert VllmConfig(urls=config.urls).conditions() == {}


def test_an_untested_version_may_be_allowed(serve: Callable[..., Any]) -> None:
    VllmConfig(urls=(serve(version="0.9.1").url,), allow_untested=True).preflight(plan())


@pytest.mark.parametrize(
    ("where", "status", "words"),
    [
        ("/collective_rpc", 404, "cannot be trained with"),
        ("/collective_rpc", 500, "without the extension"),
        ("/inference/v1/generate", 403, "cannot be trained with"),
    ],
)
def test_a_server_without_what_is_needed_is_told_how_to_start(
    serve: Callable[..., Any], where: str, status: int, words: str
) -> None:
    server = serve()
    server.fault = lambda path, body: status if path == where else None
    with pytest.raises(ConfigError, match=words) as caught:
        VllmConfig(urls=(server.url,)).preflight(plan())
    assert "VLLM_SERVER_DEV_MODE=1" in caught.value.fix


def test_a_dead_address_and_what_is_no_vllm_are_named(serve: Callable[..., Any]) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=f"no vLLM answers at {dead}"):
        VllmConfig(urls=(dead,)).preflight(plan())
    server = serve()
    server.fault = lambda path, body: {"hello": "world"}
    with pytest.raises(ConfigError, match="is not vLLM"):
        VllmConfig(urls=(server.url,)).preflight(plan())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "no vLLM server is named"),
        ({"python": "/no/such/python"}, "cannot be run"),
        pytest.param(
            {"python": sys.executable},
            "has no vLLM",
            marks=pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here"),
        ),
        ({"urls": ("http://10.0.0.9:8000",), "transport": "files"}, "rollout.sync_dir"),
        pytest.param(
            {"python": "python", "transport": "nccl"},
            "needs cards, and there is none",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card"),
        ),
    ],
)
def test_settings_without_servers_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VllmConfig(**settings).preflight(plan())


def test_addresses_are_checked_when_they_are_read() -> None:
    for urls, words in ((("127.0.0.1:8000",), "not an address"), (("http://a:1/", "http://a:1"), "twice")):
        with pytest.raises(ValueError, match=words):
            VllmConfig(urls=urls)
    with pytest.raises(ValueError, match="both given"):
        VllmConfig(urls=("http://a:1",), python="python")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": 100}, "takes 100 tokens, and the policy 256"),
        ({"shape": {"hidden_size": 4096}}, "hidden_size 4096 instead of 160"),
    ],
)
def test_a_server_of_another_model_is_refused(
    serve: Callable[..., Any], engine_of: Callable[..., Any], options: Any, words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        engine_of(serve(**options))
    assert caught.value.exit_code == 2


def test_another_tokenizer_or_another_folder_is_refused(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., Any]
) -> None:
    server = serve()
    server.fault = lambda path, body: {"tokens": [1, 2, 3]} if path == "/tokenize" else None
    with pytest.raises(UserError, match="another tokenizer"):
        engine_of(server)
    blind = serve()
    hello = blind.rlhf_hello
    blind.rlhf_hello = lambda folder: hello("")
    with pytest.raises(UserError, match="does not see"):
        engine_of(blind)


def test_a_policy_that_is_not_text_is_refused(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_plugin_native.engine.modality_of", lambda _: object())
    with pytest.raises(UserError, match="not text"):
        engine_of(serve(), context=replace(ctx))


class TwoRanks:
    """Rank 0, of two; the other one sees its folder or not."""

    rank, world_size = 0, 2

    def __init__(self, *, sees: bool) -> None:
        self.sees = sees

    def gather_objects(self, value: Any) -> list[Any]:
        return [value, self.sees if value is True else None]


def test_a_rank_that_does_not_see_where_rank_0_writes_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rank 1 does not see '.*', where rank 0 writes the weights") as caught:
        make_sync_folder(tmp_path, TwoRanks(sees=False), shared=True)
    assert "--set rollout.sync_dir=FOLDER" in caught.value.fix
    assert not list(tmp_path.iterdir()), "nothing is left"
    place = make_sync_folder(tmp_path, TwoRanks(sees=True), shared=True)
    assert (place.folder / "token").read_text() == place.token
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot create a folder for the weights in"):
        make_sync_folder(tmp_path / "file", TwoRanks(sees=True), shared=True)

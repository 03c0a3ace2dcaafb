"""What the memory plan counts of vLLM: parts, phases, places, and settings with which it cannot start."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlhf_core.cli.main import cli
from rlhf_core.config import ConfigError
from rlhf_plugin_preflight.memory.engine import EngineFacts
from rlhf_plugin_vllm.cards import cards_of_servers, option
from rlhf_plugin_vllm.colocated_config import ColocatedConfig
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.memory import cache_bytes, utilization

_spec = importlib.util.spec_from_file_location("server_process", Path(__file__).with_name("server_process.py"))
assert _spec is not None
assert _spec.loader is not None
_servers: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_servers)
environment = _servers.environment
GIB = 1 << 30
SPACE = "rollout.environment.VLLM_CPU_KVCACHE_SPACE"
SMALL = ("dataset.limit=64", "trainer.rollout_batch_size=8", "trainer.micro_batch_size=4", "trainer.eval_samples=0")


def sets(*settings: str) -> list[str]:
    """Of a run with few completions, as words of the command."""
    return [word for setting in (*SMALL, *settings) for word in ("--set", setting)]


def facts(**changes: Any) -> EngineFacts:
    """Of a model of 2 GiB on a device of 80."""
    values: dict[str, Any] = {
        "weights": 2 * GIB, "head": GIB // 4, "token": 1 << 17, "vocabulary": 1000, "context": 4096, "rows": 64,
        "trained": 4 * GIB, "largest": GIB // 2, "lora": False, "on_cpu": False, "device": 80 * GIB, "ranks": 1,
    }  # fmt: skip
    return EngineFacts(**{**values, **changes})


@functools.cache
def plan(*settings: str, ranks: int = 1, strategy: str = "single", card: str = "") -> dict[str, Any]:
    words = ["memory", "plan", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic"]
    words += ["--model", "pocket", "--ranks", str(ranks), "--strategy", strategy, "--json"]
    words += ["--device-memory", card] if card else []
    result = CliRunner().invoke(cli, [*words, *sets(*settings)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.slow
def test_vllm_in_the_process_holds_its_weights_and_cache_in_all_phases_on_a_cpu() -> None:
    found = plan("rollout.name=vllm_colocated", f"{SPACE}='1'")
    for phase in found["phases"].values():
        assert phase["parts"]["engine KV cache"] == GIB
        assert phase["parts"]["engine weights"] > 5_400_000
    rollout = found["phases"]["rollout"]["parts"]
    largest = max(found["model"]["largest"], found["model"]["layer"])
    assert rollout["weight sync"] == largest, "vLLM is handed one weight at a time, and no clone"
    assert "KV cache" not in rollout, "the native engine samples nothing"


@pytest.mark.slow
def test_on_a_card_it_takes_its_share_and_gives_it_back_for_the_update() -> None:
    awake, asleep = ({"rollout": True, "load": True}, {"update": False, "checkpoint": False})
    found = plan("rollout.name=vllm_colocated", "rollout.gpu_memory=0.25", card="80GiB")
    for name, held in {**awake, **asleep}.items():
        parts = found["phases"][name]["parts"]
        assert parts.get("engine weights", 0) + parts.get("engine KV cache", 0) == held * 20 * GIB, name
    assert found["engine"] == {"estimate": True, "elsewhere": {}, "refusal": None}
    kept = plan("rollout.name=vllm_colocated", "rollout.sleep=false", card="80GiB")
    assert kept["phases"]["update"]["parts"]["engine KV cache"] > 30 * GIB


def test_under_lora_sleeping_weights_wait_in_main_memory() -> None:
    held = ColocatedConfig().memory(facts(lora=True, trained=GIB // 8))
    assert held.left == {}
    assert held.host == {"engine weights": 2 * GIB + GIB // 8}


@pytest.mark.slow
def test_each_rank_counts_a_vllm_of_its_own() -> None:
    one, two = (plan("rollout.name=vllm_colocated", f"{SPACE}='1'", ranks=n, strategy=s)["phases"]["rollout"]["parts"]
                for n, s in ((1, "single"), (2, "fsdp")))  # fmt: skip
    assert two["engine KV cache"] == one["engine KV cache"] == GIB
    assert two["engine weights"] == one["engine weights"]


def test_servers_by_address_cost_the_file_that_is_written() -> None:
    held = VllmConfig(urls=("http://127.0.0.1:8000",), bucket_mib=100).memory(facts(on_cpu=True))
    assert held.parts == {}
    assert held.syncing == {"weight sync": GIB}, "one weight is larger than a file: gathered, and as it is written"
    assert VllmConfig(urls=("http://127.0.0.1:8000",)).memory(facts()).host == {"weight sync": GIB}


@pytest.mark.slow
def test_where_ranks_divide_the_policy_nothing_of_it_is_whole_or_cloned() -> None:
    settings = ("rollout.name=vllm", "rollout.urls=[http://127.0.0.1:8000]", "rollout.bucket_mib=1")
    ddp, fsdp = (plan(*settings, ranks=2, strategy=name) for name in ("ddp", "fsdp"))
    parts = {name: found["phases"]["rollout"]["parts"] for name, found in (("ddp", ddp), ("fsdp", fsdp))}
    trained = ddp["model"]["trained"] * 4
    assert parts["ddp"]["weight sync"] - parts["fsdp"]["weight sync"] == trained, "the clone"
    assert 2 << 20 <= parts["fsdp"]["weight sync"] < trained, "a file, gathered and as it is written, or a unit"
    assert "gathered units" not in parts["fsdp"]


def test_servers_on_other_cards_are_counted_against_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("rlhf_plugin_vllm.memory.cards_here", lambda: 0)  # whatever this machine has
    share, started = int(0.92 * 80 * GIB), {"python": "python"}
    elsewhere = VllmConfig(**started, environment={"CUDA_VISIBLE_DEVICES": "1"}).memory(facts())
    assert (elsewhere.parts, elsewhere.elsewhere) == ({}, {"card 1": share})
    beside = VllmConfig(**started).memory(facts())
    assert (beside.parts, beside.elsewhere) == ({"engine servers": share}, {})
    ranks = VllmConfig(**started, environment={"CUDA_VISIBLE_DEVICES": "2"}).memory(facts(ranks=2))
    assert ranks.refusal is not None
    assert "--gpu-memory-utilization=0.45" in str(ranks.refusal.fix)
    smaller = VllmConfig(
        **started, arguments=("--gpu-memory-utilization", "0.45"), environment={"CUDA_VISIBLE_DEVICES": "2"}
    )
    assert smaller.memory(facts(ranks=2)).refusal is None
    each_its_own = VllmConfig(**started, environment={"CUDA_VISIBLE_DEVICES": "4,5"}).memory(facts(ranks=2))
    assert each_its_own.elsewhere == {"card 4": share, "card 5": share}
    assert each_its_own.refusal is None
    assert VllmConfig(**started).memory(facts(ranks=2)).parts == {"engine servers": share}, "each beside its rank"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 5")
    assert VllmConfig(**started).memory(facts(ranks=2)).elsewhere == {}, "however they are written"


def test_a_plan_for_several_machines_counts_this_ones_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr("rlhf_plugin_vllm.memory.cards_here", lambda: 8)
    held = VllmConfig(python="python").memory(facts(ranks=8))
    assert held.parts == {}
    assert set(held.elsewhere) == {f"card {n}" for n in (4, 5, 6, 7)}


@pytest.mark.parametrize(
    ("named", "size", "servers", "ranks", "here", "expected"),
    [
        ("", 1, 4, 4, "", ["4", "5", "6", "7"]),  # four cards train, four serve
        ("", 2, 2, 2, "", ["2,3", "4,5"]),
        ("", 1, 8, 8, "", ["0", "1", "2", "3", "4", "5", "6", "7"]),  # beside its rank
        ("", 1, 2, 2, "5,6,GPU-a,GPU-b", ["GPU-a", "GPU-b"]),
        ("6, 7", 1, 4, 4, "", ["6", "7", "6", "7"]),
        ("4,5,6,7", 2, 2, 2, "0,1", ["4,5", "6,7"]),
    ],
)
def test_each_server_gets_cards_of_its_own(
    named: str, size: int, servers: int, ranks: int, here: str, expected: list[str]
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": here} if here else {}
    cards = cards_of_servers(named, [f"--tensor-parallel-size={size}"], servers, ranks, 8, environ)
    assert [",".join(names) for names in cards] == expected


def test_without_a_card_nothing_is_said_and_too_few_are_refused() -> None:
    assert cards_of_servers("", [], 2, 2, 0, {}) == [[], []]
    with pytest.raises(ConfigError, match="takes 4 cards, and there are 2 for it: 4, 5"):
        cards_of_servers("4,5", ["-tp", "4"], 1, 1, 8, {})
    assert cards_of_servers("", ["-tp", "2", "-pp=2", "--data-parallel-size=2"], 1, 1, 9, {}) == [list("12345678")]


@pytest.mark.slow
def test_the_cheapest_change_for_a_cache_that_does_not_fit_is_a_smaller_one() -> None:
    settings = ("rollout.name=vllm_colocated", f"{SPACE}='999'")
    found = plan(*settings)
    assert found["fits"] is False
    assert found["cheapest_change"]["fits"] is True
    assert "VLLM_CPU_KVCACHE_SPACE" in found["cheapest_change"]["settings"][0]


@pytest.mark.slow
def test_servers_that_do_not_fit_this_machine_are_refused_before_launch(tmp_path: Path) -> None:
    words = ["train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--model", "pocket"]
    words += sets("rollout.name=vllm", f"rollout.python={environment(tmp_path)}", f"{SPACE}='999'")
    with pytest.raises(ConfigError, match=r"this run cannot fit(.|\n)*engine servers 1.07 TB") as caught:
        CliRunner().invoke(cli, [*words, "--run-dir", str(tmp_path / "run")], catch_exceptions=False)
    assert f"--set \"{SPACE}='" in str(caught.value.fix)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("rollout.name=vllm_colocated", f"{SPACE}='0.5'"), "not a whole number of GiB"),
        (("rollout.name=vllm_colocated", "rollout.arguments.kv_cache_memory_bytes=1000000"), "holds 195 tokens"),
        (
            ("rollout.name=vllm", 'rollout.arguments=["--gpu-memory-utilization=1.5"]'),
            "not a share of a device's memory",
        ),
    ],
)
def test_settings_with_which_it_cannot_start_are_refused(settings: tuple[str, ...], words: str) -> None:
    command = ["memory", "plan", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic"]
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(cli, [*command, *sets(*settings)], catch_exceptions=False)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_share_too_small_for_the_weights_names_one_that_is_enough() -> None:
    refusal = ColocatedConfig(gpu_memory=0.01).memory(facts()).refusal
    assert isinstance(refusal, ConfigError)
    assert "--set rollout.gpu_memory=0.04" in str(refusal.fix)
    assert ColocatedConfig(gpu_memory=0.04).memory(facts()).refusal is None


def test_options_are_read_as_vllm_reads_them() -> None:
    arguments = ["--gpu-memory-utilization=0.9", "--gpu_memory_utilization", "0.3", "--kv_cache_memory_bytes=4G"]
    assert utilization(arguments) == 0.3
    assert cache_bytes({}, option(arguments, "--kv-cache-memory-bytes"), on_cpu=False) == 4 << 30
    assert cache_bytes({}, "1.5g", on_cpu=False) == 1_500_000_000
    with pytest.raises(ConfigError, match="not a number of bytes"):
        cache_bytes({}, "4 gigabytes", on_cpu=False)


@pytest.mark.slow
def test_the_plan_is_shown_before_an_engine_that_cannot_start_is_refused() -> None:
    words = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic"]
    words += sets("rollout.name=vllm_colocated", "rollout.arguments.kv_cache_memory_bytes=1000000")
    result = CliRunner().invoke(cli, ["memory", "plan", *words, "--json"])
    assert isinstance(result.exception, ConfigError)
    found = json.loads(result.stdout)
    assert (found["fits"], found["peak"] > 0) == (False, True)
    assert found["engine"]["refusal"] == result.exception.what

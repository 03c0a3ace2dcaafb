"""`rlhf memory plan --splits`: sets of cards, what fits, and commands that a shell and a dry run take."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlhf_core.cli.main import cli
from rlhf_core.config import ConfigError
from rlhf_plugin_preflight.memory.engine import CardsAsked, EngineFacts
from rlhf_plugin_vllm.colocated_config import ColocatedConfig
from rlhf_plugin_vllm.config import VllmConfig

_spec = importlib.util.spec_from_file_location("server_process", Path(__file__).with_name("server_process.py"))
assert _spec is not None
assert _spec.loader is not None
_servers: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_servers)
GIB = 1 << 30
RUN = ("--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--model", "pocket")
SMALL = (
    "dataset.limit=64", "trainer.rollout_batch_size=48", "trainer.train_batch_size=48", "trainer.group_size=4",
    "trainer.micro_batch_size=4", "trainer.eval_samples=0", "strategy=ddp",
)  # fmt: skip
STUB = """#!/bin/bash
{ printf '%s\\n' "$CUDA_VISIBLE_DEVICES" "$@"; } > "$FOLDER/NAME-$$"
"""


def asked(cards: int = 8, weights: int = 2 * GIB, own: Any = None, **changes: Any) -> CardsAsked:
    facts = EngineFacts(
        weights=weights, head=GIB, token=1 << 20, vocabulary=1000, context=4096, rows=64, trained=weights, largest=GIB,
        lora=False, on_cpu=False, device=80 * GIB, ranks=cards,
    )  # fmt: skip
    values: dict[str, Any] = {
        "cards": cards, "per_machine": 8, "facts": facts, "heads": 32, "kv_heads": 8, "model": "M", "dtype": "bfloat16",
        "lora_rank": 0, "quantized": False, "ahead": False,
    }  # fmt: skip
    return CardsAsked(**{**values, "own": own, **changes})


@pytest.mark.parametrize(("weights", "size"), [(60, 1), (70, 2), (142, 2), (288, 4), (500, 8)])
def test_a_server_takes_the_smallest_set_of_cards_that_holds_the_model_and_one_sequence(
    weights: int, size: int
) -> None:
    layouts = {layout.train: layout for layout in VllmConfig.layouts(asked(16, weights * GIB))}
    (layout,) = layouts.values()
    assert (layout.train, layout.cards, layout.servers, layout.refusal) == (8, size, 8 // size, None)
    share = int(0.92 * 80 * GIB)
    assert layout.weights + layout.cache == pytest.approx(share, abs=2)
    assert layout.tokens == (size * share - weights * GIB) // (1 << 20) >= 4096


def test_cards_that_hold_no_server_are_refused_with_sizes() -> None:
    (layout,) = VllmConfig.layouts(asked(2, 100 * GIB))
    assert layout.refusal is not None
    assert "room for 0 tokens, and the policy takes 4096" in layout.refusal.what
    assert "weights take 100.0 GiB, keys and values of a token 1024 KiB" in str(layout.refusal.why)


def test_heads_and_servers_divide_their_cards() -> None:
    sizes = {layout.train: layout.cards for layout in VllmConfig.layouts(asked(8, 142 * GIB, kv_heads=2))}
    assert sizes == {1: 1, 2: 2, 3: 1, 4: 2, 5: 1, 6: 2, 7: 1}
    refused = {layout.train for layout in VllmConfig.layouts(asked(8, 142 * GIB)) if layout.refusal is not None}
    assert refused == {1, 3, 5, 7}


def test_servers_of_the_run_have_cards_of_their_own_and_others_are_started_first() -> None:
    own = VllmConfig(urls=("http://127.0.0.1:1",), arguments=("-tp", "4", "--enforce-eager"))
    layouts = {layout.train: layout for layout in VllmConfig.layouts(asked(own=own))}
    assert layouts[4].start == ()
    assert "rollout.environment.CUDA_VISIBLE_DEVICES='4,5,6,7'" in layouts[4].settings
    assert 'rollout.arguments=["--enforce-eager"]' in layouts[4].settings
    assert "rollout.replicas=3" in layouts[2].settings
    assert "--enforce-eager" in layouts[5].start[0]
    assert "rollout.urls=[http://127.0.0.1:8000,http://127.0.0.1:8001,http://127.0.0.1:8002]" in layouts[5].settings


def test_what_vllm_cannot_do_is_refused() -> None:
    assert all(layout.refusal is not None for layout in ColocatedConfig.layouts(asked(ahead=True)))
    assert {n.train for n in VllmConfig.layouts(asked(quantized=True)) if n.refusal is None} == {1, 2, 4}


def splits(*words: str, card: str = "2GiB", ranks: int = 4) -> dict[int, Any]:
    sets = [word for setting in SMALL for word in ("--set", setting)]
    command = ["memory", "plan", *RUN, *sets, *words, "--ranks", str(ranks), "--device-memory", card, "--splits"]
    result = CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return {row["train"]: row for row in json.loads(result.stdout)["splits"]}


def ran(folder: Path, lines: list[str], python: str) -> dict[str, list[list[str]]]:
    """What a shell starts for some lines: the cards and words of each call of a stub."""
    folder.mkdir()
    for name in ("server", "rlhf", "torchrun", "curl"):
        (folder / name).write_text(STUB.replace("NAME", name))
        (folder / name).chmod(0o755)
    environment = {**os.environ, "FOLDER": str(folder), "PATH": f"{folder}:{os.environ['PATH']}", "VLLM_PYTHON": python,
                   "HOST_0": "a", "HOST_1": "b", "SHARED": "/s", "MACHINE": "0"}  # fmt: skip
    ends = lines[-1].startswith("kill")  # servers; the stubs have ended
    subprocess.run(["bash", "-euc", "\n".join([*lines[: len(lines) - ends], "wait"])], env=environment, check=True)
    return {
        name: sorted(file.read_text().splitlines() for file in folder.glob(f"{name}-*"))
        for name in ("server", "rlhf", "torchrun")
    }


def dry_run(words: list[str]) -> str:
    result = CliRunner().invoke(cli, [*words, "--dry-run"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_every_command_is_one_that_a_shell_and_a_dry_run_take(tmp_path: Path, serve: Callable[..., Any]) -> None:
    found = splits()
    assert {train for train, row in found.items() if row["fits"]} == {1, 2, 3, 4}
    for train in (1, 2):
        python = _servers.environment(tmp_path / f"of-run-{train}")
        started = ran(tmp_path / str(train), found[train]["commands"], python)
        assert started["server"] == []
        ((cards, *words),) = started["rlhf"]
        assert cards == os.environ.get("CUDA_VISIBLE_DEVICES", "")
        assert words[-2:] == ["--nproc", str(train)]
        dry_run(words)
    assert found[3]["commands"][-1] == "kill $(jobs -p)"
    started = ran(tmp_path / "3", found[3]["commands"], str(tmp_path / "3" / "server"))
    ((of_server, *server),), ((of_run, *words),) = started["server"], started["rlhf"]
    assert (of_server, of_run) == ("3", "0,1,2")
    assert server[server.index("--port") + 1] == "8000"
    url = serve().url
    dry_run([word.replace("http://127.0.0.1:8000", url) for word in words])
    ((_, *words),) = ran(tmp_path / "4", found[4]["commands"], "")["rlhf"]
    with pytest.raises(ConfigError, match="vLLM is not installed beside the toolkit"):
        dry_run(words)


@pytest.mark.slow
@pytest.mark.long
def test_a_printed_command_trains_two_ranks_with_a_server_on_each_other_card(tmp_path: Path) -> None:
    """Servers are stand-ins, on processes of this machine that are shown these cards."""
    few = ("trainer.steps=1", "trainer.sampling.max_tokens=8", "strategy.device=cpu", "trainer.precision=fp32")
    row = splits(*(word for setting in few for word in ("--set", setting)))[2]
    (line,) = row["commands"]
    cache = "--set \"rollout.environment.VLLM_CPU_KVCACHE_SPACE='1'\" --set trainer.gold_samples=0 --run-dir run"
    environment = {**os.environ, "VLLM_PYTHON": _servers.environment(tmp_path / "vllm")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", f"{line} {cache}"], env=environment, cwd=tmp_path, check=True)
    cards = {call["cards"] for call in _servers.calls(tmp_path / "vllm") if call["call"] == "generate"}
    assert cards == {"2", "3"}
    assert (tmp_path / "run" / "final").is_dir()


@pytest.mark.slow
def test_servers_of_several_machines_are_found_by_name(tmp_path: Path) -> None:
    row = splits("--ranks-per-node", "2")[2]
    started = ran(tmp_path / "on", row["commands"], str(tmp_path / "on" / "server"))
    assert [(cards, words[words.index("--port") + 1]) for cards, *words in started["server"]] == [
        ("0", "8000"), ("1", "8001")]  # fmt: skip
    ((_, *words),) = started["torchrun"]
    assert "rollout.urls=[http://b:8000,http://b:8001]" in words
    assert words[words.index("--nnodes") + 1] == "1"
    assert words[-2:] == ["--run-dir", "/s/run"]


@pytest.mark.slow
def test_numbers_of_cards_that_the_trainer_refuses_are_named() -> None:
    found = splits("--set", "trainer.rollout_batch_size=40", "--set", "trainer.train_batch_size=40")
    assert {train: row["fits"] for train, row in found.items()} == {1: True, 2: True, 3: False, 4: False}
    assert found[3]["why_not"].startswith("10 prompts per step cannot be divided among 3 processes")


@pytest.mark.slow
def test_a_run_that_fits_nowhere_is_said_to() -> None:
    words = ["memory", "plan", *RUN, "--ranks", "2", "--device-memory", "20MiB", "--splits", "--set", "strategy=ddp"]
    said = CliRunner().invoke(cli, words, catch_exceptions=False).output
    assert "1 train, 1 serve: no, a card that trains needs" in said or "room for 0 tokens" in said
    assert "none holds this run; rlhf memory plan without --splits names the cheapest change" in said


def test_a_users_own_dollar_stays_as_it_is_written() -> None:
    from rlhf_plugin_preflight.memory.splits import expanded

    assert shlex.split(expanded(["a b", "it's $HOST_0"])) == ["a b", "it's $HOST_0"]

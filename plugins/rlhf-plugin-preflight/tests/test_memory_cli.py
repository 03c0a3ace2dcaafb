"""`rlhf memory plan`: its table, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlhf_core.cli.main import cli
from rlhf_core.types.errors import ModelError, UserError
from rlhf_plugin_pocket import weights_path

SMALL = ("--set", "trainer.micro_batch_size=2", "--set", "trainer.batch_size=4", "--set", "trainer.sample_prompts=0")


def plan(*words: str) -> str:
    result = CliRunner().invoke(cli, ["memory", "plan", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_folder_with_a_configuration_alone_is_planned(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((weights_path() / "config.json").read_text())
    words = ("--algo", "sft", "--model", str(tmp_path), *SMALL, "--prompt-tokens", "20", "--reply-tokens", "10")
    facts = json.loads(plan(*words, "--ranks", "4", "--strategy", "fsdp", "--device-memory", "1GiB", "--json"))
    assert facts["model"]["parameters"] == 1_372_960
    assert facts["fits"]
    assert facts["fewest_ranks"]["fsdp"] == 1
    assert facts["phases"]["update"]["parts"]["optimizer"] == pytest.approx(2 * 4 * 1_372_960 / 4, rel=1e-3)
    assert facts["micro_batch"][0] == {"prompt": 20, "replies": [10]}
    assert facts["estimate"] is all(row["planned_for"] for row in facts["strategies"] if row["strategy"] == "fsdp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "planned", "per_node"),
    [
        ((), "ddp", 8),
        (("strategy=fsdp",), "fsdp", 8),
        (("strategy=fsdp", "strategy.shard_size=2"), "hsdp", 2),
        (("strategy=deepspeed", "strategy.stage=2"), "zero2", 8),
    ],
    ids=str,
)
def test_the_runs_own_strategy_is_planned(settings: tuple[str, ...], planned: str, per_node: int) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    sizes = ("--prompt-tokens", "20", "--reply-tokens", "10", "--device-memory", "1GiB", "--nproc", "4")
    facts = json.loads(plan("--algo", "sft", *SMALL, *sizes, *words, "--json"))
    assert (facts["strategy"], facts["ranks_per_node"]) == (planned, per_node)


@pytest.mark.slow
def test_main_memory_is_compared_with_what_is_offloaded_there() -> None:
    words = ("--algo", "sft", "--set", "trainer.micro_batch_size=1", "--set", "model.gradient_checkpointing=true")
    words += ("--set", "trainer.sample_prompts=0", "--prompt-tokens", "20", "--reply-tokens", "10")
    words += ("--device-memory", "80GiB", "--strategy", "fsdp_offload", "--ranks", "8", "--ranks-per-node", "4")
    unknown, small, large = (
        json.loads(plan(*words, *more, "--json"))
        for more in ((), ("--host-memory", "8MiB"), ("--host-memory", "16MiB"))
    )
    assert unknown["host_peak"] == pytest.approx(16 * 1_372_960 / 8, rel=0.05), "what Adam needs of a weight"
    assert (unknown["host_limit"], small["host_limit"], large["host_limit"]) == (None, 2 << 20, 4 << 20)
    assert (unknown["fits"], small["fits"], large["fits"]) == (True, False, True)
    assert small["fewest_ranks"]["fsdp_offload"] == 16
    assert "does NOT fit 2.1 MB that each can have" in plan(*words, "--host-memory", "8MiB")


@pytest.mark.slow
def test_the_cheapest_change_is_named_where_a_run_does_not_fit() -> None:
    text = plan("--algo", "sft", *SMALL, "--device-memory", "24MB", "--prompt-tokens", "64", "--reply-tokens", "64")
    assert "does NOT fit 24 MB" in text
    assert "cheapest change" in text
    assert "--set " in text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--algo", "sft", "--model", "./nothing-here"), "nothing-here"),
        (("--algo", "sft", "--device-memory", "plenty"), "not an amount of memory"),
        (("--algo", "sft", "--strategy", "fsdq"), "did you mean 'fsdp'"),
        (("--algo", "sft", "--ranks", "4", "--tensor", "3"), "does not divide 4 ranks"),
        (("--algo", "sft", "--ranks", "3", "--tensor", "3"), "does not divide the 5 heads"),
        (("--algo", "sft", "--prompt-tokens", "999999"), "do not fit"),
        (("--algo", "grpo", "--reply-tokens", "9"), "max_tokens"),
        (("--algo", "sft", "--set", "model.dtype=bfloat16", "--set", "trainer.precision=bf16"), "cannot be combined"),
    ],
)
def test_bad_input_is_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises((UserError, ModelError), match=why) as refused:
        CliRunner().invoke(cli, ["memory", "plan", *words], catch_exceptions=False)
    assert refused.value.exit_code == 2

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
@pytest.mark.parametrize("optimizers", [True, False])
def test_only_what_is_installed_is_advised(optimizers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ("--prompt-tokens", "20", "--reply-tokens", "230", "--device-memory", "20MB", "--set", "model.lora.r=1")
    sizes += ("--algo", "sft", "--set", "trainer.micro_batch_size=1", "--set", "trainer.sample_prompts=0")
    monkeypatch.setenv("RLHF_DISABLE_PLUGINS", "" if optimizers else "rlhf-plugin-optimizers")
    advised = "model.gradient_checkpointing=" + ("selective" if optimizers else "true")
    assert json.loads(plan(*sizes, "--json"))["cheapest_change"]["settings"] == [advised]


@pytest.mark.slow
def test_a_sequence_that_ranks_divide_is_planned_as_one_rank_holds_it() -> None:
    words = (
        "--algo",
        "sft",
        "--model",
        "shape:family=llama,layers=2,hidden=64,heads=8,kv_heads=4,vocab=512,context=1024",
    )
    words += (*SMALL, "--prompt-tokens", "40", "--reply-tokens", "460", "--device-memory", "1GiB", "--ranks", "8")
    whole, divided = (
        json.loads(plan(*words, "--set", "strategy=fsdp", "--set", f"strategy.sequence_parallel={n}", "--json"))
        for n in (1, 4)
    )
    activations, slices = (facts["phases"]["update"]["parts"]["activations"] for facts in (whole, divided))
    assert 0.2 * activations < slices < 0.35 * activations
    assert {row["strategy"] for row in divided["strategies"]} == {"fsdp", "hsdp", "fsdp_offload"}
    assert divided["fewest_ranks"]["fsdp"] == 4, "a group of ranks at least"
    with pytest.raises(ModelError, match="heads of attention cannot be divided among 3 ranks"):
        plan(*words[:-1], "6", "--set", "strategy=fsdp", "--set", "strategy.sequence_parallel=3")


@pytest.mark.slow
def test_layers_that_ranks_divide_are_planned_for_a_rank() -> None:
    words = ("--algo", "sft", "--model", "shape:family=llama,layers=6,hidden=64,heads=8,kv_heads=4,vocab=512", *SMALL)
    words += ("--prompt-tokens", "40", "--reply-tokens", "60", "--device-memory", "1GiB", "--set", "strategy=fsdp")
    divided = (*words, "--set", "strategy.tensor_parallel=4")
    facts = json.loads(plan(*divided, "--ranks", "8", "--json"))
    weights, root, norms = 4 * facts["model"]["parameters"], 4 * (2 * 512 * 64 + 64), 6 * 4 * 2 * 64
    held = (weights - root - norms) / 4 + root + norms
    assert facts["phases"]["load"]["parts"]["weights"] == pytest.approx(held / 2, rel=0.01)
    assert facts["phases"]["update"]["parts"]["optimizer"] == pytest.approx(held, rel=0.01)
    assert [row["strategy"] for row in facts["strategies"]] == ["fsdp"]
    assert (facts["fewest_ranks"], facts["estimate"]) == ({"fsdp": 4}, False)
    assert "fsdp, 8 ranks, tensor 4" in plan(*divided, "--ranks", "8")
    for why, *more in (
        ("4 does not divide 6 ranks", "6"),
        ("4 with --str", "8", "--tensor", "2"),
        ("--spl", "8", "--splits"),
    ):
        with pytest.raises(UserError, match=why):
            plan(*divided, "--ranks", *more)


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
        (("--algo", "grpo", "--splits", "--device-memory", "80GiB"), "one card cannot be split"),
        (("--algo", "grpo", "--splits", "--ranks", "8"), "cards of a size"),
        (
            ("--algo", "grpo", "--splits", "--ranks", "8", "--device-memory", "8GiB", "--strategy", "zero2"),
            "own strategy",
        ),
        (("--algo", "grpo", "--splits", "--ranks", "12", "--device-memory", "80GiB"), "not whole machines of 8"),
        (("--algo", "sft", "--splits", "--ranks", "8", "--device-memory", "80GiB"), "no card would serve"),
    ],
)
def test_bad_input_is_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises((UserError, ModelError), match=why) as refused:
        CliRunner().invoke(cli, ["memory", "plan", *words], catch_exceptions=False)
    assert refused.value.exit_code == 2


TINY = "shape:family=gpt2,layers=2,hidden=64,heads=4,vocab=500,context=128"
FEW = ("--prompt-tokens", "20", "--reply-tokens", "20", "--device-memory", "80GiB")


def test_one_rank_is_told_that_nothing_is_sharded() -> None:
    words = ("--algo", "sft", "--model", TINY, *SMALL, *FEW)
    assert "fsdp on one rank shards nothing: weights, gradients and moments stay whole" in plan(
        *words, "--strategy", "fsdp"
    )
    assert "shards nothing" not in plan(*words, "--strategy", "fsdp", "--ranks", "2")


def test_settings_of_a_strategy_are_those_of_the_layout_that_is_asked_for() -> None:
    words = ("--algo", "sft", "--model", TINY, *SMALL, *FEW, "--ranks", "2", "--set", "trainer.precision=bf16")
    with pytest.raises(UserError, match="--set strategy=fsdp"):
        plan(*words, "--set", "strategy.param_dtype=bfloat16")
    for layout in ("fsdp", "hsdp", "fsdp_offload"):
        plan(*words, "--strategy", layout, "--set", "strategy.param_dtype=bfloat16")
    plan(*words, "--strategy", "zero2", "--set", "strategy.stage=2")


def test_a_peak_of_sampling_names_the_setting_that_ends_it_and_what_a_reference_costs() -> None:
    words = ("--algo", "dpo", "--model", TINY, *FEW, "--set", "trainer.micro_batch_size=1")
    said = plan(*words, "--set", "trainer.batch_size=1", "--strategy", "fsdp", "--ranks", "4")
    assert "the peak samples for evaluations alone: --set trainer.sample_prompts=0 leaves" in said
    (costs,) = (line for line in said.splitlines() if line.startswith("reference: "))
    assert "laid out as the weights. By trainer.reference.kind: whole " in costs
    assert "(dtype=bfloat16: whole " in costs
    assert "reference: " not in plan(*words, "--set", "trainer.sample_prompts=0", "--set", "trainer.batch_size=1")


def test_sampling_that_does_not_fit_is_left_out_first() -> None:
    words = ("--algo", "dpo", "--model", TINY, "--set", "trainer.micro_batch_size=1", "--set", "trainer.batch_size=1")
    facts = json.loads(plan(*words, *FEW[:4], "--device-memory", "80GiB", "--json"))
    phases = {name: sum(phase["parts"].values()) for name, phase in facts["phases"].items()}
    between = (phases["rollout"] + max(size for name, size in phases.items() if name != "rollout")) // 2
    facts = json.loads(plan(*words, *FEW[:4], "--device-memory", f"{between // 1024}KiB", "--json"))
    assert facts["cheapest_change"]["settings"] == ["trainer.sample_prompts=0"]


@pytest.mark.slow
def test_the_table_has_every_shape_once() -> None:
    rows = json.loads(plan("--table", "--json"))["models"]
    assert len({row["parameters"] for row in rows}) == len(rows) >= 18
    assert "FSDP on one card shards nothing" in plan("--table")

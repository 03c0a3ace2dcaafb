"""Every optimizer: conformance with resume, what it steps, what refuses it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_core.config import ConfigError, Registry
from rlhf_core.config.load import validate
from rlhf_core.distributed import LocalStrategy
from rlhf_core.plugins.context import BuildContext
from rlhf_core.training import Learner, LoopSettings
from rlhf_core.training.loop import _StepsOfCaller  # pyright: ignore[reportPrivateUsage]
from rlhf_core.training.optimizer import plan_optimizer, prepare_to_learn
from rlhf_testing import check_optimizer, make_context

PACKAGES = {"schedule_free": "schedulefree", "adamw_8bit": "bitsandbytes"}
ON_CPU = ("adamw", "adafactor", "muon", "schedule_free", "adamw_8bit")


def settings_of(name: str, **options: Any) -> Any:
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    return Registry(disabled=()).config("optimizer", name, options)


@pytest.mark.parametrize("name", ON_CPU)
def test_it_conforms_and_goes_on_from_its_state_bit_for_bit(name: str) -> None:
    check_optimizer(settings_of(name))


def llama(**options: Any) -> Any:
    torch.manual_seed(0)
    shape = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**shape, **heads, **options))


@pytest.mark.parametrize("tied", [True, False])
def test_muon_steps_hidden_matrices_and_adamw_the_rest(tied: bool) -> None:
    plan = plan_optimizer(llama(tie_word_embeddings=tied), settings_of("muon", weight_decay=0.1))
    parts = {group.part: group for group in plan.groups}
    assert len(parts["hidden"].names) == 7
    assert not any("embed" in name or "head" in name for name in parts["hidden"].names)
    ends = ("model.embed_tokens.weight",) + (() if tied else ("lm_head.weight",))
    assert parts["matrix"].names == ends
    assert [parts[part].weight_decay for part in ("hidden", "matrix", "vector")] == [0.1, 0.1, 0.0]


def test_an_orthogonal_step_has_the_size_of_adamws() -> None:
    model = llama()
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    _, optimizer = prepare_to_learn(LocalStrategy(), model, settings_of("muon", learning_rate=1e-2))
    ids = torch.randint(0, 97, (8, 64), generator=torch.Generator().manual_seed(0))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.inner.step()  # pyright: ignore[reportAttributeAccessIssue]
    update = model.model.layers[0].mlp.up_proj.weight.detach() - before
    assert float(update.square().mean().sqrt()) == pytest.approx(0.2 * 1e-2, rel=0.2)
    values = torch.linalg.svdvals(update)
    assert float(values.max() / values.median()) < 2, "nearly orthogonal"


def test_adafactor_keeps_a_row_and_a_column_of_a_matrix() -> None:
    model = llama()
    _, optimizer = prepare_to_learn(LocalStrategy(), model, settings_of("adafactor"))
    ids = torch.arange(40).view(2, 20)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.inner.step()  # pyright: ignore[reportAttributeAccessIssue]
    weight = model.model.layers[0].mlp.up_proj.weight
    state = optimizer.inner.state[weight]  # pyright: ignore[reportAttributeAccessIssue]
    assert state["row_var"].numel() + state["col_var"].numel() == sum(weight.shape)


def context(algorithm: str, optimizer: dict[str, Any], **sections: Any) -> BuildContext:
    registry = Registry(disabled=())
    config = validate(registry, {"trainer": {"name": algorithm, "optimizer": optimizer}, **sections})
    return BuildContext(config=config, registry=registry, seed=0, world_size=2)


FREE = {"name": "schedule_free", "schedule": "constant"}


@pytest.mark.parametrize(
    ("strategy", "optimizer", "refused"),
    [
        ("fsdp", {"name": "muon"}, True),
        ("fsdp", {"name": "adafactor"}, True),
        ("fsdp", {"name": "adamw_8bit"}, True),
        ("fsdp", FREE, False),
        ("fsdp", {"name": "adamw"}, False),
        ("deepspeed", {"name": "muon"}, True),
        ("deepspeed", FREE, True),
    ],
)
def test_what_a_strategy_cannot_divide_is_refused_by_name(
    strategy: str, optimizer: dict[str, Any], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_plugin_deepspeed.config.check_installation", lambda config: None)
    ctx = context("sft", optimizer, strategy={"name": strategy})
    assert ctx.config.strategy is not None
    if not refused:
        ctx.config.strategy.preflight(ctx)
        return
    with pytest.raises(ConfigError, match=f"strategy {strategy} cannot .* optimizer {optimizer['name']}"):
        ctx.config.strategy.preflight(ctx)


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "message"),
    [
        ("grpo", FREE, "schedule_free cannot train with algorithm 'grpo'"),
        ("sft", {"name": "paged_adamw"}, "paged_adamw without CUDA"),
    ],
)
def test_a_run_that_it_does_not_fit_is_refused(algorithm: str, optimizer: dict[str, Any], message: str) -> None:
    pytest.importorskip("schedulefree")
    pytest.importorskip("bitsandbytes")
    if torch.cuda.is_available() and optimizer["name"] == "paged_adamw":
        pytest.skip("there is CUDA")
    ctx = context(algorithm, optimizer)
    with pytest.raises(ConfigError, match=message):
        ctx.config.trainer.optimizer.preflight(ctx)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"name": "muno"}, "unknown optimizer 'muno'[\\s\\S]*muon"),
        ({"name": "adafactor", "betas": [0.5, 0.5]}, "betas has no effect with adafactor"),
        ({"name": "schedule_free"}, "schedule_free cannot have schedule cosine"),
        ({"name": "muon", "ns_step": 3}, "ns_steps"),
        ({"min_lr": 1.0}, "min_lr 1.0 cannot be reached"),
    ],
)
def test_wrong_settings_are_refused(optimizer: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        context("sft", optimizer)
    assert getattr(caught.value, "exit_code", None) == 2


def test_a_name_keeps_what_the_algorithm_says_of_the_rate() -> None:
    config = context("dpo", {"name": "muon"}).config
    assert config.trainer.optimizer.name == "muon"
    assert config.trainer.optimizer.warmup_steps == 10
    dumped = config.model_dump(mode="json")["trainer"]["optimizer"]
    assert dumped["ns_steps"] == 5, "a plan has its own settings"
    assert validate(Registry(disabled=()), config.model_dump(mode="json")).trainer.optimizer == config.trainer.optimizer


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("adamw", 1.99, 2.01), ("adafactor", 0.001, 0.05), ("muon", 1.0, 1.2), ("adamw_8bit", 0.5, 0.53)],
)
def test_the_memory_plan_counts_its_state(
    name: str, least: float, most: float, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlhf_core.cli.main import main

    settings_of(name)
    lengths = ["--prompt-tokens", "16", "--reply-tokens", "16"]
    with pytest.raises(SystemExit):
        main(["memory", "plan", "--algo", "sft", "--set", f"trainer.optimizer={name}", *lengths, "--json"])
    parts = json.loads(capsys.readouterr().out)["phases"]["update"]["parts"]
    assert least < parts["optimizer"] / parts["weights"] < most


def test_a_loop_of_ones_own_ends_with_averaged_weights() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = llama()

    settings = LoopSettings(name="own", optimizer=settings_of("schedule_free", learning_rate=1e-2))
    learner = Learner(Model(), lambda batch: batch, LocalStrategy(), settings, 3)
    written: list[bool] = []
    modes: list[dict[str, Any]] = learner.optimizer.inner.param_groups  # pyright: ignore[reportAttributeAccessIssue]
    checkpoints = SimpleNamespace(write_final=lambda model, write: written.append(modes[0]["train_mode"]))
    session = SimpleNamespace(checkpoints=checkpoints, finish=dict)
    policy: Any = SimpleNamespace(model=None, save=print)
    loop = _StepsOfCaller(make_context(session=session), settings, policy, lambda: learner, lambda step: {}, None)
    loop.start(None)
    assert modes[0]["train_mode"]
    loop.finish(3)
    assert written == [False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["muon", pytest.param("schedule_free", marks=pytest.mark.long), "adamw_8bit"])
def test_a_resumed_run_is_the_run_that_was_never_interrupted(name: str, tmp_path: Path) -> None:
    from rlhf_core.cli.main import main

    settings_of(name)

    def run(folder: Path, steps: int, *more: str) -> None:
        options = {"optimizer.name": name, "optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
        options |= {"batch_size": 4, "eval_samples": 2, "max_steps": steps}
        settings = [word for key, value in options.items() for word in ("--set", f"trainer.{key}={value}")]
        start = ["--algo", "sft", "--set", "threads=1", "--run-dir", str(folder), *settings]
        with pytest.raises(SystemExit) as ended:
            main(["train", *(start if not more else [*more, "--set", f"trainer.max_steps={steps}"])])
        assert ended.value.code == 0

    run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 2)
    run(tmp_path / "parts", 4, "--resume", str(tmp_path / "parts"))
    one, other = ((tmp_path / n / "final" / "model.safetensors").read_bytes() for n in ("whole", "parts"))
    assert one == other

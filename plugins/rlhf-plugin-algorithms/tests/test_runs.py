"""Whole runs of the pocket models: algorithms equal the trainers of the same name, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_plugin_pocket import weights_path

Command = Callable[..., tuple[int, str]]
SMALL = (
    "threads=1",
    "dataset=pocket/arithmetic",
    "dataset.limit=64",
    "reward={name: verifier, workers: 1, timeout_s: 60}",
    "trainer.steps=3",
    "trainer.rollout_batch_size=16",
    "trainer.micro_batch_size=8",
    "trainer.sampling.max_tokens=12",
    "trainer.eval_samples=2",
    "trainer.gold_samples=2",
    "trainer.optimizer.learning_rate=1e-4",
)


def train(command: Command, run: Path, algo: str, *values: str, nproc: int = 1) -> tuple[int, str]:
    own = {value.partition("=")[0] for value in values}
    small = [value for value in SMALL if value.partition("=")[0].partition(".")[0] not in own - {"trainer"}]
    words = [word for value in (*small, *values) for word in ("--set", value)]
    several = ("--nproc", str(nproc)) if nproc > 1 else ()
    return command("train", "--algo", algo, "--run-dir", run, *words, *several)


def trained(command: Command, run: Path, algo: str, *values: str, nproc: int = 1) -> Mapping[str, torch.Tensor]:
    code, err = train(command, run, algo, *values, nproc=nproc)
    assert code == 0, err
    return load_file(str(run / "final" / "model.safetensors"))


def steps(run: Path) -> list[dict[str, Any]]:
    return [row for row in map(json.loads, (run / "metrics.jsonl").open()) if "grad_norm" in row]


PPO = (
    "trainer.group_size=2",
    "trainer.train_batch_size=8",
    "trainer.epochs_per_rollout_batch=2",
    "trainer.kl={where: reward, estimator: k1, coefficient: 0.02}",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "both", "trainer", "algorithm"),
    [
        ("grpo", (), (), ()),
        ("rloo", ("trainer.reduction=sequence_mean",), (), ()),
        (
            "ppo",
            PPO,
            ("trainer.kl.controller=fixed", "advantage.critic.learning_rate=1e-3"),
            ("trainer.algorithm.advantage.critic.learning_rate=1e-3",),
        ),
    ],
)
def test_an_algorithm_makes_the_updates_of_its_trainer_bit_for_bit(
    name: str,
    both: tuple[str, ...],
    trainer: tuple[str, ...],
    algorithm: tuple[str, ...],
    command: Command,
    tmp_path: Path,
) -> None:
    one = trained(command, tmp_path / "trainer", name, *both, *trainer)
    other = trained(command, tmp_path / "algorithm", "algorithm", f"trainer.algorithm.name={name}", *both, *algorithm)
    assert all(torch.equal(one[key], other[key]) for key in one)
    names = ("loss", "grad_norm", "reward/mean", "entropy", "constant_groups", "value_loss")
    first, second = ([{n: row.get(n) for n in names} for row in steps(tmp_path / d)] for d in ("trainer", "algorithm"))
    assert first == second
    assert json.loads((tmp_path / "algorithm" / "summary.json").read_text())["algo"] == name


def test_an_algorithm_has_a_trainers_place_on_the_command_line(command: Command, tmp_path: Path) -> None:
    both = ("trainer.steps=2", "trainer.optimizer.learning_rate=1e-3")
    one = trained(command, tmp_path / "trainer", "grpo", "advantage.name=max_rl", *both)
    other = trained(command, tmp_path / "algorithm", "max_rl", *both)
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pocket model with other weights."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    shutil.copytree(weights_path(), folder)
    for file in folder.glob("manifest*"):
        file.unlink()
    weights, generator = load_file(str(folder / "model.safetensors")), torch.Generator().manual_seed(0)
    for name, weight in weights.items():
        weights[name] = weight + 0.04 * torch.randn(weight.shape, generator=generator).to(weight.dtype)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


@pytest.mark.slow
def test_distillation_is_that_of_the_trainer(command: Command, tmp_path: Path, teacher: Path) -> None:
    both = ("trainer.group_size=1", "reward.name=unscored", "trainer.kl={track: false, coefficient: 0}")
    values = [v for v in both if "kl" not in v]
    one = trained(command, tmp_path / "trainer", "distill", *values, f"trainer.teacher={teacher}")
    chosen = ("trainer.algorithm.name=distill", f"trainer.algorithm.teacher={teacher}")
    other = trained(command, tmp_path / "algorithm", "algorithm", *both, *chosen)
    first, second = steps(tmp_path / "trainer"), steps(tmp_path / "algorithm")
    assert first[0]["loss"] > 0.05
    assert [row["loss"] for row in second] == pytest.approx([row["loss"] for row in first], rel=1e-6)
    assert [row["grad_norm"] for row in second] == pytest.approx([row["grad_norm"] for row in first], rel=1e-5)
    assert max(float((one[key] - other[key]).abs().max()) for key in one) < 1e-6


TWO = (
    "dataset={sources: [{name: pocket/arithmetic, label: a}, {name: pocket/two_digit_sums, label: b}]}",
    "trainer.algorithms=[{name: grpo, sources: [a]}, {name: sft_mix, rows: 4}]",
)


def test_demonstrations_are_learned_where_every_completion_was_cut(command: Command, tmp_path: Path) -> None:
    cut = ("trainer.sampling.max_tokens=1", "trainer.mask_truncated=true", "trainer.importance.old_policy=behaviour")
    trained(command, tmp_path / "run", "sft_mix", "trainer.algorithm.rows=4", *cut)
    rows = steps(tmp_path / "run")
    assert [row["truncated_masked"] for row in rows] == [16.0] * 3
    assert all(row["signal/cross_entropy"] > 0 for row in rows)


def test_demonstrations_beyond_the_context_are_left_out(command: Command, tmp_path: Path) -> None:
    row, long = {"prompt": "1 + 1 =", "completion": "2"}, {"prompt": "1 + 1 =", "completion": "2 " * 200}
    for name, rows in (("few", [row] * 30 + [long]), ("many", [row, long])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    values = ("model.max_context=60", "trainer.steps=1")
    trained(command, tmp_path / "run", "sft_mix", f"trainer.algorithm.dataset={tmp_path}/few.jsonl", *values)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["dropped"]["examples_too_long"] == 1
    code, err = train(command, tmp_path / "no", "sft_mix", f"trainer.algorithm.dataset={tmp_path}/many.jsonl", *values)
    assert (code, "1 of 2 examples" in err) == (2, True), err


def test_an_importance_correction_stands_before_the_terms(command: Command, tmp_path: Path) -> None:
    trained(command, tmp_path / "run", "max_rl", "trainer.importance.mode=truncate", "trainer.steps=1")
    assert steps(tmp_path / "run")[0]["importance/mean_ratio"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.slow
def test_each_source_has_its_algorithm(command: Command, tmp_path: Path) -> None:
    trained(command, tmp_path / "run", "algorithm", *TWO)
    assert all(row["signal/cross_entropy"] > 0 for row in steps(tmp_path / "run"))
    assert {"grpo/advantage/group_std", "sft_mix/advantage/group_std"} <= set(steps(tmp_path / "run")[0])


@pytest.mark.slow
def test_two_algorithms_of_one_name_report_apart(command: Command, tmp_path: Path) -> None:
    both = "trainer.algorithms=[{name: grpo, sources: [a]}, {name: grpo}]"
    trained(command, tmp_path / "run", "algorithm", TWO[0], both, "trainer.steps=1")
    assert {"grpo-1/advantage/group_std", "grpo-2/advantage/group_std"} <= set(steps(tmp_path / "run")[0])


CRITIC = "trainer.algorithms=[{name: max_rl, sources: [a]}, {name: ppo}]"


@pytest.mark.slow
def test_one_of_several_algorithms_may_have_a_critic(command: Command, tmp_path: Path) -> None:
    code, err = train(command, tmp_path / "run", "algorithm", TWO[0], CRITIC)
    assert (code, "where=reward has no effect on algorithm max_rl" in err) == (2, True), err
    trained(command, tmp_path / "run", "algorithm", TWO[0], CRITIC, "trainer.kl.where=loss", "trainer.steps=2")
    assert all("value_loss" in row for row in steps(tmp_path / "run"))


def test_demonstrations_beside_the_policy_gradient_are_learned(command: Command, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"id": n, "prompt": f"Is {n} odd?", "completion": "Blue sky."}) + "\n" for n in range(9))
    )
    values = (
        f"trainer.algorithm.dataset={tmp_path / 'rows.jsonl'}",
        "trainer.algorithm.rows=6",
        "trainer.optimizer.learning_rate=1e-3",
        "trainer.steps=6",
    )
    trained(command, tmp_path / "run", "sft_mix", *values)
    losses = [row["signal/cross_entropy"] for row in steps(tmp_path / "run")]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.slow
def test_answers_of_an_environment_are_learned_where_no_score_differs(command: Command, tmp_path: Path) -> None:
    values = (
        "environment=lookup",
        "model=pocket-tools",
        "dataset={name: lookup, limit: 8}",
        "reward={name: environment}",
        "trainer.sampling.max_tokens=160",
        "trainer.steps=4",
        "trainer.rollout_batch_size=8",
        "trainer.kl={coefficient: 0}",
        "trainer.optimizer={learning_rate: 1e-3, warmup_steps: 0}",
        "trainer.algorithm.roles={tool: 1.0}",
    )
    trained(command, tmp_path / "run", "echo", *values)
    losses = [row["signal/cross_entropy"] for row in steps(tmp_path / "run")]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(
    ("algo", "values", "said"),
    [
        ("max_rk", (), "max_rl"),
        ("algorithm", ("trainer.algorithm=grpp",), "grpo"),
        ("algorithm", ("trainer.algorithm=grpo", "trainer.algorithms=[rloo]"), "both given"),
        ("algorithm", ("trainer.algorithms=[grpo, rloo]",), "name no sources"),
        ("algorithm", ("trainer.algorithms=[{name: grpo, sources: [sums]}, rloo]",), "source 'sums'"),
        (
            "algorithm",
            ("trainer.algorithms=[{name: grpo, sources: [pocket/arithmetic]}, rloo]",),
            "algorithm 'rloo' has no rollouts",
        ),
        ("algorithm", ("trainer.algorithms=[{name: ppo, sources: [a]}, ppo]",), "each bring a critic"),
        ("max_rl", ("advantage.name=group_norm",), "advantage 'group_norm' has no effect"),
        ("max_rl", ("trainer.entropy_quantile=0.5",), "trainer.entropy_quantile has no effect"),
        ("echo", ("trainer.algorithm.rolls={tool: 1}",), "roles"),
        ("echo", (), "algorithm 'echo' has no environment to learn from"),
        ("algorithm", ("trainer.algorithm=distill",), "needs a teacher"),
        (
            "algorithm",
            ("trainer.algorithm={name: distill, teacher: pocket}", "trainer.entropy_coefficient=0.1"),
            "trainer.entropy_coefficient has no effect",
        ),
        ("max_rl", ("trainer.group_size=1",), "group size 1 is too small"),
    ],
)
def test_what_cannot_work_is_refused(
    algo: str, values: tuple[str, ...], said: str, command: Command, tmp_path: Path
) -> None:
    code, err = train(command, tmp_path / "run", algo, *values)
    assert (code, said in err) == (2, True), err
    assert not (tmp_path / "run").exists()


SEVERAL = "trainer.algorithms=[{name: sft_mix, sources: [a], rows: 3}, {name: distill, teacher: TEACHER}]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "strategy"),
    [
        (("trainer.algorithm.name=sft_mix",), "ddp"),
        pytest.param(("trainer.algorithm.name=ppo", "trainer.kl.where=reward"), "ddp", marks=pytest.mark.long),
        pytest.param((TWO[0], SEVERAL), "ddp", marks=pytest.mark.long),
        (("trainer.algorithm.name=sft_mix",), "fsdp"),
    ],
)
def test_two_ranks_learn_what_one_process_does(
    values: tuple[str, ...], strategy: str, command: Command, tmp_path: Path, teacher: Path
) -> None:
    """Demonstrations, a critic, and sources with different terms and a teacher."""
    given = [value.replace("TEACHER", str(teacher)) for value in (*values, "trainer.micro_batch_size=4")]
    trained(command, tmp_path / "1", "algorithm", *given)
    trained(command, tmp_path / "2", "algorithm", *given, f"strategy.name={strategy}", nproc=2)
    one, two = ([row[key] for row in steps(tmp_path / n) for key in ("loss", "grad_norm")] for n in ("1", "2"))
    assert two == pytest.approx(one, rel=1e-4, abs=1e-7)


MODULE = """
from typing import ClassVar
import numpy as np
from rlhf_plugin_algorithms.config import AlgorithmConfig
from rlhf_plugin_algorithms.signals import Signal, Signals

class NaughtyConfig(AlgorithmConfig):
    name: str = "naughty"
    component: ClassVar[str] = "acme_naughty:Naughty"
    components: ClassVar[tuple[str, ...]] = ("policy_gradient", "kl")
    does: str = "nothing"

class TypoConfig(NaughtyConfig):
    name: str = "typo"
    components: ClassVar[tuple[str, ...]] = ("policy_gradiant",)

class UncriticalConfig(NaughtyConfig):
    name: str = "uncritical"
    components: ClassVar[tuple[str, ...]] = ("value",)

class Naughty:
    def __init__(self, config):
        self.config = config
    def signals(self, scored):
        count, first = len(scored.rollouts), len(scored.rollouts[0].completion_ids)
        kl = Signal("kl", [0.0] * count)
        rest = [1.0] * (count - 1)
        does = {
            "good": lambda: [s.value for s in scored.scores],
            "nan": lambda: [float("nan"), *rest],
            "prompt": lambda: [np.ones(first + len(scored.rollouts[0].prompt_ids)), *rest],
            "few": lambda: rest,
            "zeros": lambda: [0.0] * count,
            "raise": lambda: 1 / 0,
        }
        return Signals([Signal("policy_gradient", does[self.config.does]()), kl])
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution in a folder."""
    folder = tmp_path / "site" / "acme_naughty-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-naughty\nVersion: 1.0\n")
    classes = {"naughty": "NaughtyConfig", "typo": "TypoConfig", "uncritical": "UncriticalConfig"}
    rows = [f"{name} = acme_naughty:{cls}" for name, cls in classes.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[rlhf.algorithm]", *rows]) + "\n")
    (tmp_path / "site" / "acme_naughty.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("algo", "does", "code", "said"),
    [
        ("naughty", "nan", 2, "finite numbers"),
        ("naughty", "prompt", 2, "prompts have no signal"),
        ("naughty", "few", 2, "15 weights of 'policy_gradient' for 16 rollouts"),
        ("naughty", "zeros", 2, "no weight but 0"),
        ("naughty", "raise", 1, "ZeroDivisionError"),
        ("typo", "good", 2, "did you mean 'policy_gradient'"),
        ("uncritical", "good", 2, "has_critic"),
    ],
)
def test_a_faulty_algorithm_is_named(
    algo: str, does: str, code: int, said: str, command: Command, tmp_path: Path
) -> None:
    ended, err = train(command, tmp_path / "run", algo, f"trainer.algorithm.does={does}")
    assert (ended, said in err) == (code, True), err
    assert f"'{algo}'" in err
    assert ("acme-naughty 1.0" in err) == (algo == "naughty")


@pytest.mark.usefixtures("acme")
def test_a_kl_needs_the_reference_policy(command: Command, tmp_path: Path) -> None:
    values = ("trainer.algorithm.does=good", "trainer.kl={coefficient: 0, track: false}")
    code, err = train(command, tmp_path / "run", "naughty", *values)
    assert (code, "needs the reference policy" in err) == (2, True), err

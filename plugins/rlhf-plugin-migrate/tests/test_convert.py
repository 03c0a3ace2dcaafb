"""`rlhf config from-trl | from-verl | from-openrlhf`: values, units, notes, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli.main import main
from rlhf_core.config import ConfigError, Registry
from rlhf_core.config.load import resolve, unfilled
from rlhf_plugin_migrate.convert import convert
from rlhf_plugin_migrate.printing import lines
from rlhf_plugin_migrate.read import PeerConfig
from rlhf_plugin_migrate.tables import load_table, trl_defaults

FILLED = {"model.path": "some/model", "dataset.name": "pocket", "trainer.steps": 3, "reward.name": "random"}
Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("from-trl", "a.yaml", text="...")`` -> (exit code, JSON of the translation, or the error)."""
    monkeypatch.chdir(tmp_path)

    def call(command: str, *args: str, text: str | None = None) -> tuple[int, Any]:
        if text is not None:
            Path(args[0]).write_text(text)
        with pytest.raises(SystemExit) as done:
            main(["config", command, "--json", *args])
        out, err = capsys.readouterr()
        return int(done.value.code or 0), json.loads(out) if done.value.code == 0 else err

    return call


@cache
def registry() -> Registry:
    return Registry(disabled=())


def flat(result: Any) -> dict[str, Any]:
    """What was translated, by our keys; what is left to the user is not."""
    settings = {target: value for row in result["rows"] for target, value in row["settings"].items()}
    return {target: value for target, value in settings.items() if value != "???"}


def meanings(result: Any) -> dict[str, str]:
    return {row["key"]: row["meaning"] for row in result["rows"]}


@pytest.mark.parametrize("name", load_table("trl").classes)
def test_a_class_of_trl_becomes_a_configuration_that_validates(name: str, tmp_path: Path) -> None:
    table = load_table("trl")
    converted = convert(PeerConfig(dict(trl_defaults()[name]), name, {}), table, registry(), table.classes[name])
    file = tmp_path / "ours.yaml"
    file.write_text("\n".join(lines(converted, "TRL")))
    with pytest.raises(ConfigError, match="not filled in: "):
        resolve(registry(), files=[file])
    left_open = {"model.path", "dataset.name", "trainer.steps", "reward.name"}
    ours = resolve(
        registry(), files=[file], settings=[f"{key}={FILLED[key]}" for key in left_open & {*unfilled(converted.config)}]
    )
    assert {*unfilled(converted.config)} <= left_open
    assert (ours.trainer.name, ours.seed) == (table.classes[name], 42)


def test_every_default_of_a_class_has_a_note(run: Run) -> None:
    _, result = run("from-trl", "--class", "GRPOConfig")
    assert set(meanings(result)) == set(trl_defaults()["GRPOConfig"])
    assert [key for key, meaning in meanings(result).items() if meaning == "unknown"] == []
    assert flat(result)["trainer.optimizer.betas"] == [0.9, 0.999]


@pytest.mark.slow
def test_the_tables_know_every_field_of_the_installed_trl() -> None:
    trl = pytest.importorskip("trl")
    import dataclasses

    table = load_table("trl")
    for name in (*(n for n in table.classes if n != "PPOConfig"), "ModelConfig"):
        fields = {field.name: field for field in dataclasses.fields(getattr(trl, name))}
        assert sorted(set(fields) - set(table.by_key)) == []
        for key, value in trl_defaults().get(name, {}).items():
            default = fields[key].default
            made = fields[key].default_factory() if default is dataclasses.MISSING else default  # type: ignore[misc]
            assert getattr(made, "value", made) == value, f"{name}.{key}"


def test_sizes_of_trl_are_over_all_processes(run: Run) -> None:
    text = (
        "per_device_train_batch_size: 4\ngradient_accumulation_steps: 8\nnum_generations: 4\nsteps_per_generation: 16"
    )
    code, result = run("from-trl", "a.yaml", "--nproc", "2", text=text)
    assert (code, result["algorithm"]) == (0, "grpo")
    settings = flat(result)
    assert settings["trainer.train_batch_size"] == 4 * 8 * 2
    assert settings["trainer.rollout_batch_size"] == 4 * 16 * 2
    assert settings["trainer.micro_batch_size"] == 4
    _, result = run("from-trl", "a.yaml", "--class", "SFTConfig", "--nproc", "2", text=text.partition("\nnum")[0])
    assert flat(result)["trainer.batch_size"] == 64


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("loss_type: grpo\nnum_generations: 4", {"trainer.reduction": "sequence_mean"}),
        ("loss_type: cispo\nnum_generations: 4", {"loss.name": "cispo"}),
        ("scale_rewards: false\nnum_generations: 4", {"advantage.scale": "none"}),
        ("scale_rewards: batch\nnum_generations: 4", {"advantage.name": "batch_norm"}),
        ("warmup_ratio: 0.1\nmax_steps: 50\nnum_generations: 4", {"trainer.optimizer.warmup_steps": 5}),
        ("loss_type: [exo_pair]\nlabel_smoothing: 0.01\nld_alpha: 0.5", {"loss.name": "exo", "trainer.ld_alpha": 0.5}),
        ("use_peft: true\nlora_r: 8\nld_alpha: 1.0", {"model.lora.r": 8}),
        ("reward_model_path: rm\nvf_coef: 0.2", {"reward.name": "bradley_terry", "reward.path": "rm"}),
        ("report_to: [wandb]\npacking: false", {"trackers": ["wandb"]}),
        ("dataset_name: a/b\ndataset_config: main\npacking: true", {"dataset.name": "a/b", "dataset.subset": "main"}),
    ],
)
def test_values_of_trl(run: Run, text: str, settings: dict[str, Any]) -> None:
    code, result = run("from-trl", "a.yaml", text=text)
    assert code == 0, result
    assert {key: flat(result).get(key) for key in settings} == settings


def test_a_python_script_and_what_only_running_it_gives(run: Run) -> None:
    text = "from trl import GRPOConfig\nargs = GRPOConfig(output_dir=f'{x}', learning_rate=2e-6, beta=BETA)\n"
    _, result = run("from-trl", "train.py", text=text)
    assert flat(result) == {"trainer.optimizer.learning_rate": 2e-6}
    assert meanings(result)["beta"] == "unknown"
    assert result["config"]["trainer"]["kl"] == {"coefficient": "???"}
    assert "learning_rate" in str(result["rows"])


def test_no_other_part_of_a_script_is_lost(run: Run) -> None:
    text = """
from trl import GRPOConfig
peft = LoraConfig(r=16)
args = GRPOConfig("out", learning_rate=2e-6, **common)
other = GRPOConfig(beta=0.1)
"""
    _, result = run("from-trl", "train.py", text=text)
    assert flat(result) == {"trainer.optimizer.learning_rate": 2e-6}
    assert result["config"]["trainer"]["steps"] == "???", "which **common may say"
    lost = {row["key"]: row["value"] for row in result["rows"] if row["meaning"] == "unknown"}
    assert lost == {
        "positional arguments": "'out'",
        "LoraConfig in line 3": "LoraConfig(r=16)",
        "GRPOConfig in line 5": "GRPOConfig(beta=0.1)",
        "**common": "common",
    }


@pytest.mark.parametrize(
    ("name", "text", "settings"),
    [
        # 8 sequences x 4 accumulated; two updates from each batch of 64, twice over it: four updates a step
        (
            "GRPOConfig",
            "gradient_accumulation_steps: 4\nsteps_per_generation: 8\nnum_iterations: 2\n"
            "max_steps: 1000\nsave_steps: 100",
            {
                "trainer.train_batch_size": 32,
                "trainer.rollout_batch_size": 64,
                "trainer.steps": 250,
                "trainer.checkpoint_every": 25,
            },
        ),
        (
            "GRPOConfig",
            "generation_batch_size: 64\nmax_steps: 12\nper_device_train_batch_size: 16",
            {"trainer.steps": 3},
        ),
        (
            "SFTConfig",
            "gradient_accumulation_steps: 4\nmax_steps: 12",
            {"trainer.batch_size": 32, "trainer.max_steps": 12},
        ),
        (
            "PPOConfig",
            "per_device_train_batch_size: 32\nnum_mini_batches: 4\ntotal_episodes: 1000",
            {"trainer.train_batch_size": 8, "trainer.rollout_batch_size": 32, "trainer.steps": 32},
        ),
        ("SFTConfig", "lr_scheduler_type: constant\nwarmup_steps: 9", {"trainer.optimizer.warmup_steps": 0}),
        (
            "SFTConfig",
            "lr_scheduler_type: constant_with_warmup\nwarmup_steps: 9",
            {"trainer.optimizer.warmup_steps": 9},
        ),
    ],
)
def test_units_of_trl(run: Run, name: str, text: str, settings: dict[str, Any]) -> None:
    code, result = run("from-trl", "a.yaml", "--class", name, text=text)
    assert code == 0, result
    assert {key: flat(result).get(key) for key in settings} == settings


def test_learning_the_prompt_too_has_no_counterpart(run: Run) -> None:
    _, result = run("from-trl", "a.yaml", "--class", "SFTConfig", text="completion_only_loss: false")
    assert meanings(result) == {"completion_only_loss": "unsupported"}


def test_command_lines_of_trl(run: Run) -> None:
    words = ("--", "trl", "dpo", "--model_name_or_path", "m", "--learning_rate=1e-6", "--gradient_checkpointing")
    _, result = run("from-trl", *words)
    assert result["algorithm"] == "dpo"
    assert result["config"]["model"] == {"path": "m", "gradient_checkpointing": True}


def test_the_file_that_a_command_line_of_trl_names_is_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text("model_name_or_path: m\nlearning_rate: 1e-6\nmax_completion_length: 9\n")
    words = ("trl", "grpo", "--config", str(tmp_path / "grpo.yaml"), "--learning_rate", "0.5")
    _, result = run("from-trl", "--", *words)
    trainer = result["config"]["trainer"]
    assert (result["config"]["model"], trainer["optimizer"]["learning_rate"]) == ({"path": "m"}, 0.5)
    assert trainer["sampling"]["max_tokens"] == 9
    assert "config" in meanings(run("from-trl", "--", *words[:3], "none.yaml")[1])


def test_verl_counts_prompts(run: Run) -> None:
    text = """set -x
MODEL=some/model
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=$HOME/a.parquet \\
    data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.rollout.n=5 \\
    +actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.kl_loss_coef=0.1 \\
    actor_rollout_ref.model.path=${MODEL} trainer.logger='["console","wandb"]' $@
"""
    _, result = run("from-verl", "run.sh", text=text)
    settings = flat(result)
    assert settings["trainer.rollout_batch_size"] == 64 * 5
    assert settings["trainer.train_batch_size"] == 16 * 5
    assert (settings["model.path"], settings["trackers"]) == ("some/model", ["wandb"])
    assert settings["dataset.columns.answer"] == "reward_model.ground_truth"
    assert "trainer.kl.coefficient" not in settings


@pytest.mark.parametrize(
    ("mode", "settings", "ours"),
    [
        ("kl_cov", {"kl_cov_ratio": 0.002, "ppo_kl_coef": 0.5}, {"share": 0.002, "beta": 0.5}),
        (
            "clip_cov",
            {"clip_cov_ratio": 0.01, "clip_cov_lb": 0.5, "clip_cov_ub": 2.0},
            {"share": 0.01, "covariance_min": 0.5, "covariance_max": 2.0},
        ),
    ],
)
def test_settings_of_a_loss_of_verl(run: Run, mode: str, settings: dict[str, float], ours: dict[str, float]) -> None:
    where = "actor_rollout_ref.actor.policy_loss"
    words = [f"{where}.{name}={value}" for name, value in {"loss_mode": mode, **settings}.items()]
    _, result = run("from-verl", "--", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", *words)
    assert {name: value for name, value in flat(result).items() if name.startswith("loss.")} == {
        "loss.name": mode, **{f"loss.{name}": value for name, value in ours.items()}
    }  # fmt: skip


def test_verl_as_yaml_and_its_supervised_trainer(run: Run) -> None:
    text = "algorithm: {adv_estimator: gae, lam: 0.9}\ncritic: {optim: {lr: 1.0e-5}}"
    _, result = run("from-verl", "a.yaml", text=text)
    assert (result["algorithm"], flat(result)["advantage.critic.learning_rate"]) == ("ppo", 1e-5)
    words = ("--", "verl.trainer.fsdp_sft_trainer", "data.train_batch_size=32", "optim.lr=1e-4", "data.response_key=a")
    _, result = run("from-verl", *words)
    assert (result["algorithm"], flat(result)["trainer.batch_size"]) == ("sft", 32)


@pytest.mark.parametrize(
    ("words", "algorithm", "settings"),
    [
        (
            "openrlhf.cli.train_ppo_ray --algo.advantage.estimator group_norm --rollout.batch_size 16 "
            "--rollout.n_samples_per_prompt 8 --actor.eps_clip_low_high 0.2 0.27 --algo.kl.use_loss",
            "grpo",
            {"trainer.rollout_batch_size": 128, "loss.clip_range_high": 0.27, "trainer.kl.where": "loss"},
        ),
        (
            "openrlhf.cli.train_ppo_ray --advantage_estimator reinforce_baseline --n_samples_per_prompt 4",
            "reinforce_pp",
            {"advantage.baseline": "group", "trainer.group_size": 4},
        ),
        ("openrlhf.cli.train_dpo --model.ipo_enable --adam.lr 5e-7", "dpo", {"loss.name": "ipo"}),
        ("openrlhf.cli.train_rm --max_len 512", "reward_model", {"trainer.max_length": 512}),
        ("openrlhf.cli.train_kto --label_key good --dataset a.jsonl", "kto", {"dataset.columns.label": "good"}),
        ("openrlhf.cli.train_sft --input_template Q:{} --multiturn", "sft", {"dataset.prompt_template": "Q:{prompt}"}),
    ],
)
def test_options_of_openrlhf(run: Run, words: str, algorithm: str, settings: dict[str, Any]) -> None:
    code, result = run("from-openrlhf", "--", *words.split())
    assert code == 0, result
    assert result["algorithm"] == algorithm
    assert {key: flat(result).get(key) for key in settings} == settings


@pytest.mark.parametrize(
    ("command", "args", "text", "parts"),
    [
        ("from-trl", (), None, ("nothing to translate",)),
        ("from-trl", ("--class", "GRPOConfg"), None, ("no class 'GRPOConfg'", "GRPOConfig")),
        ("from-trl", ("nope.yaml",), None, ("nope.yaml", "does not exist")),
        ("from-trl", ("a.yaml",), "a: [1\nb: 2", ("neither YAML nor JSON", "line 2")),
        ("from-trl", ("a.json",), '{"a": ', ("neither YAML nor JSON",)),
        ("from-trl", ("a.yaml",), "- 1\n- 2", ("holds a list",)),
        ("from-trl", ("a.yaml",), "", ("is empty",)),
        ("from-trl", ("a.py",), "x = GRPOConfig(", ("is not Python", "line 1")),
        ("from-trl", ("a.py",), "x = 1", ("calls no trainer and no configuration class of TRL",)),
        ("from-trl", ("a.yaml",), "learning_rate: 1e-5", ("does not say which algorithm", "--class")),
        ("from-trl", ("a.yaml",), "learning_rate: fast\nnum_generations: 4", ("learning_rate: 'fast'", "number")),
        ("from-trl", ("a.yaml",), "num_generations: 0", ("num_generations: 0", "greater than or equal to 1")),
        ("from-trl", ("a.yaml",), "per_device_train_batch_size: x\nepsilon: 1", ("'x' is not a number",)),
        ("from-verl", ("a.sh",), "#!/bin/bash\necho hello\n", ("holds no settings",)),
        ("from-verl", ("a.sh",), "#!/bin/bash\npython 'oops\n", ("cannot be read as a command line", "quotes")),
        ("from-verl", ("--", "algorithm.adv_estimator=magic"), None, ("'magic' has no counterpart", "grpo")),
        ("from-verl", ("a.yaml",), "learning_rate: 1e-5", ("no key of verl was found", "from-trl")),
        ("from-openrlhf", ("--", "train_ppo_ray", "--eps_clip_low_high", "0.2"), None, ("is not two numbers",)),
    ],
)
def test_bad_input(run: Run, command: str, args: tuple[str, ...], text: str | None, parts: tuple[str, ...]) -> None:
    code, said = run(command, *args, text=text)
    assert code == 2, said
    assert all(part in said for part in parts), said


def test_keys_that_are_not_known_are_named_and_left_out(run: Run) -> None:
    _, result = run("from-trl", "a.yaml", text="num_generations: 4\nmy_own_key: 3")
    assert meanings(result)["my_own_key"] == "unknown"
    assert "my_own_key" not in json.dumps(result["config"])


def test_defaults_of_the_class_can_be_written_too(run: Run) -> None:
    _, result = run("from-trl", "a.yaml", "--class", "DPOConfig", "--defaults", text="beta: 0.3")
    assert (flat(result)["loss.beta"], flat(result)["trainer.optimizer.learning_rate"]) == (0.3, 1e-6)

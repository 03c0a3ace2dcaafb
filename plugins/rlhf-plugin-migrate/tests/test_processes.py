"""A source says for how many processes it is, and the translation is printed whatever is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rlhf_core.cli.main import main
from rlhf_core.config import Registry
from rlhf_core.config.load import unfilled
from rlhf_plugin_migrate.convert import convert
from rlhf_plugin_migrate.read import read_peer_config
from rlhf_plugin_migrate.tables import load_table

OPEN_R1 = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
dataset_name: AI-MO/NuminaMath-TIR
dataset_configs: [all]
system_prompt: "Think first."
num_processes: 7
gradient_accumulation_steps: 16
per_device_train_batch_size: 16
num_generations: 7
max_steps: 100
reward_funcs: [accuracy, format]
"""


def printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *args: str, name: str = "grpo.yaml"
) -> tuple[int, str, str]:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(SystemExit) as done:
        main(["config", "from-trl", str(file), *args])
    return (int(done.value.code or 0), *capsys.readouterr())


def test_the_processes_of_a_file_are_taken_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = printed(tmp_path, capsys, OPEN_R1)
    config = yaml.safe_load(out)
    assert (code, err) == (0, "")
    assert "rlhf train --config FILE --nproc 7" in out
    assert (config["trainer"]["rollout_batch_size"], config["trainer"]["group_size"]) == (16 * 16 * 7, 7)
    assert config["dataset"] == {"name": "AI-MO/NuminaMath-TIR", "subset": "all", "system_prompt": "Think first."}
    assert (config["reward"], list(unfilled(config))) == ({"name": "???"}, ["reward.name"])


def test_what_does_not_validate_is_printed_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = OPEN_R1.replace("num_processes: 7\n", "learning_rate: fast\n")
    code, out, err = printed(tmp_path, capsys, text)
    config = yaml.safe_load(out)
    assert (code, config["model"]["path"]) == (2, "Qwen/Qwen2.5-1.5B-Instruct")
    assert config["trainer"]["optimizer"]["learning_rate"] == "???"
    assert "learning_rate: 'fast' cannot be used" in err
    assert "group_size 7 does not divide rollout_batch_size 256" in err
    assert "--nproc 7" in err
    code, out, err = printed(tmp_path, capsys, text, "--json", "--nproc", "7")
    assert (code, json.loads(out)["processes"], "group_size" in err) == (2, 7, False)


@pytest.mark.parametrize(
    ("launcher", "processes"),
    [
        ("accelerate launch --num_processes 4 --config_file zero3.yaml", 4),
        ("torchrun --nproc_per_node=8", 8),
        ("CUDA_VISIBLE_DEVICES=0 python", 1),
    ],
)
def test_the_launcher_of_a_command_says_how_many_processes(launcher: str, processes: int) -> None:
    words = f"{launcher} examples/grpo.py --num_generations 8 --per_device_train_batch_size 8".split()
    table = load_table("trl")
    assert convert(read_peer_config(words, table), table, Registry(disabled=()), "grpo").processes == processes


def test_nodes_of_verl_are_processes() -> None:
    peer_config = read_peer_config(
        ["trainer.n_gpus_per_node=8", "trainer.nnodes=2", "data.train_files=a.parquet"], load_table("verl")
    )
    converted = convert(peer_config, load_table("verl"), Registry(disabled=()), "grpo")
    assert converted.processes == 16
    assert sorted(unfilled(converted.config)) == ["model.path", "reward.name"]

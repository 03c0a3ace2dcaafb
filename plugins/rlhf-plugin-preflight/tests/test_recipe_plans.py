"""Each recipe for GPUs fits the cards that it names, with the peaks that configs/README.md states."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlhf_core.cli.main import cli

CONFIGS = Path(__file__).parents[3] / "configs"
README = (CONFIGS / "README.md").read_text()
PLANS = [
    (file.name, line.removeprefix("#   rlhf "))
    for file in sorted(CONFIGS.glob("*.yaml"))
    for line in file.read_text().splitlines()
    if line.startswith("#   rlhf memory plan")
]
QUICK = {"llama3_8b_reward_model_8gpu.yaml", "qwen3_1.7b_grpo_vllm.yaml"}
"""Of a run that learns from data, and of one that samples the first plan; the others have the same parts."""


def test_every_recipe_says_that_we_did_not_run_it_and_has_a_row() -> None:
    files = {name for name, _ in PLANS}
    assert len(files) == 14
    for name in files:
        assert "# Not run by us: only parsed and planned." in (CONFIGS / name).read_text()
        assert f"[`{name}`]({name})" in README


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "command"),
    [
        pytest.param(
            *(name, command),
            id=f"{name}-{i}",
            marks=() if name in QUICK and PLANS[i - 1][0] != name else pytest.mark.long,
        )
        for i, (name, command) in enumerate(PLANS)
    ],
)
def test_a_recipe_fits_its_cards(name: str, command: str) -> None:
    result = CliRunner().invoke(cli, shlex.split(command), catch_exceptions=False)
    peak = re.search(r"^peak (\S+ GB) in \w+: fits", result.output, re.MULTILINE)
    assert peak, result.output
    row = next(line for line in README.splitlines() if f"[`{name}`]" in line)
    assert peak[1] in row

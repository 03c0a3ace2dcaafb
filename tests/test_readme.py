"""What the README and the page of the first loss show works."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rlhf_core.config import ComponentConfig
from rlhf_core.losses import LossOutput, TokenBatch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
LOSS = (ROOT / "docs" / "loss.md").read_text()


def run(code: str, name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Execute a block of the page as the module ``name``."""
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, name, "exec"), module.__dict__)
    return module.__dict__


def test_the_first_loss_builds_and_has_the_gradient_of_reinforce(monkeypatch: pytest.MonkeyPatch) -> None:
    config, loss = re.findall(r"```python\n(.*?)```", LOSS, re.DOTALL)
    package = ModuleType("rlhf_plugin_my_loss")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "rlhf_plugin_my_loss", package)
    run(loss, "rlhf_plugin_my_loss.loss", monkeypatch)
    names = run(f'__package__ = "rlhf_plugin_my_loss"\n{config}', "rlhf_plugin_my_loss.config", monkeypatch)
    cls = names["MyLossConfig"]
    assert issubclass(cls, ComponentConfig)
    logprobs_BT = torch.zeros(1, 2, requires_grad=True)
    batch = TokenBatch(logprobs_BT, torch.ones(1, 2, dtype=torch.bool), advantages_BT=torch.tensor([[1.0, -2.0]]))
    out = cls(weight=3.0).build(None)(batch)
    assert isinstance(out, LossOutput)
    out.loss.sum().backward()
    assert logprobs_BT.grad is not None
    assert logprobs_BT.grad.tolist() == [[-3.0, 6.0]]


def test_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = set(re.findall(r"^make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert asked
    assert asked <= targets


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_every_ratio_against_trl_names_the_processor(page: str) -> None:
    """Half of what we win on one make of processor is its library's weakness there."""
    rows = [row for row in (ROOT / page).read_text().splitlines() if "TRL" in row and "times as fast" in row]
    assert rows
    assert [row for row in rows if "AMD" not in row] == []

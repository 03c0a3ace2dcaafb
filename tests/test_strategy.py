"""The strategy of one process."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from rlhf_core.strategy.accelerated import AcceleratedStrategy, forget_mixed_precision


@pytest.mark.parametrize("how", ["another accelerator", "the environment"])
def test_precision_is_not_what_another_library_left_behind(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TRL trainer that ran before in this process asks accelerate for bfloat16, which every later one shares."""
    forget_mixed_precision()
    if how == "the environment":
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    else:
        AcceleratorState._reset_state()
        Accelerator(cpu=True, mixed_precision="bf16")
    layer, x_BH = torch.nn.Linear(64, 64), torch.randn(8, 64)
    want_BH = layer(x_BH)
    prepared = AcceleratedStrategy(1, "cpu").prepare(layer)
    assert torch.equal(prepared(x_BH), want_BH)

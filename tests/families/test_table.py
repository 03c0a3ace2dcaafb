"""The table of what works with what says what a run does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.families.cells import CELLS, TABLE, cell
from tests.families.record import FILE

RECORDED: dict[str, dict[str, str]] = json.loads(FILE.read_text())
SLOW = ("prefix sharing", "LoRA", "QLoRA")
NEEDS = {"ZeRO": "deepspeed", "QLoRA": "bitsandbytes"}


def test_every_family_is_there_and_no_fault_is_recorded() -> None:
    assert len(TABLE) >= 16
    assert RECORDED.keys() == set(TABLE)
    assert not [cells for cells in RECORDED.values() if any(said.startswith("FAULT") for said in cells.values())]
    assert all(cells.keys() == CELLS.keys() for cells in RECORDED.values()), "every cell is measured"


@pytest.mark.parametrize("family", TABLE)
def test_packing_is_as_recorded(family: str, tmp_path: Path) -> None:
    assert cell(family, "packing", tmp_path) == RECORDED[family]["packing"]


@pytest.mark.slow
@pytest.mark.parametrize("family", TABLE)
@pytest.mark.parametrize("what", [*SLOW[:2], pytest.param(SLOW[2], marks=pytest.mark.long)])
def test_cells_of_one_process_are_as_recorded(family: str, what: str, tmp_path: Path) -> None:
    if what in NEEDS:
        pytest.importorskip(NEEDS[what])
    assert cell(family, what, tmp_path) == RECORDED[family][what]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("family", TABLE)
@pytest.mark.parametrize("what", [name for name in CELLS if name not in ("packing", *SLOW)])
def test_cells_of_several_processes_are_as_recorded(family: str, what: str, tmp_path: Path) -> None:
    if what not in RECORDED[family]:
        pytest.skip("not measured")
    if what in NEEDS:
        pytest.importorskip(NEEDS[what])
    if what == "vLLM" and not os.environ.get("RLHF_VLLM_PYTHON"):
        pytest.skip("RLHF_VLLM_PYTHON names no interpreter of an environment with vLLM")
    assert cell(family, what, tmp_path) == RECORDED[family][what]

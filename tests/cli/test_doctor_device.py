"""`rlhf doctor --device`: what this machine computes, against the plain way."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.device_check import forwards
from rlhf_core.device_check.report import Comparison, Report
from rlhf_core.device_check.runs import difference, strategies
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.policy import forward_check
from rlhf_core.rollout.native import NativeEngine

Rlhf = Callable[..., Any]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pocket() -> LoadedModel:
    return load_policy(ModelConfig(path="pocket"))


def test_the_forwards_of_this_machine_agree(pocket: LoadedModel) -> None:
    rows = list(forwards.compare_forwards(pocket, CPU, "fp32"))
    names = [row.what.removeprefix("forward fp32: ") for row in rows]
    assert names == ["share_prefix", "packing", "chunked_head", "all together"]
    assert {row.verdict for row in rows} == {"agrees"}
    assert all(row.seconds > 0 and row.speedup for row in rows)


def test_a_forward_that_computes_something_else_is_found(pocket: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    right = forward_check.completion_logprobs

    def wrong(*args: Any, **kwargs: Any) -> Any:
        out = right(*args, **kwargs)
        if kwargs["packed"]:
            out.logprobs_BT[-1, -1] += 0.1
        return out

    monkeypatch.setattr(forward_check, "completion_logprobs", wrong)
    verdicts = {row.what: row.verdict for row in forwards.compare_forwards(pocket, CPU, "fp32")}
    assert verdicts == {
        "forward fp32: share_prefix": "agrees",
        "forward fp32: packing": "differs",
        "forward fp32: chunked_head": "agrees",
        "forward fp32: all together": "differs",
    }


def test_an_engine_that_misstates_its_logprobs_is_found(pocket: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row.verdict for row in forwards.compare_engine(pocket, CPU, "fp32")] == ["agrees"]
    right = NativeEngine.generate

    def wrong(*args: Any) -> Any:
        *rollouts, last = right(*args)
        return [*rollouts, replace(last, logprobs_T=last.logprobs_T - 0.01)]

    monkeypatch.setattr(NativeEngine, "generate", wrong)
    assert [row.verdict for row in forwards.compare_engine(pocket, CPU, "fp32")] == ["differs"]


def test_weights_are_compared_by_their_change() -> None:
    start, plain = {"w": torch.zeros(4)}, {"w": torch.full((4,), 1e-3)}
    assert difference(plain, {"w": plain["w"].clone()}, start) == 0
    assert difference(plain, {"w": plain["w"] * 1.5}, start) == pytest.approx(0.5)
    assert difference(plain, {"w": torch.zeros(2, 2)}, start) is None
    assert difference(plain, {"v": plain["w"]}, start) is None
    assert difference(start, plain, start) == float("inf")


def test_every_strategy_for_several_processes_is_tried() -> None:
    assert {"ddp", "fsdp"} <= set(strategies())
    assert not {"auto", "single"} & set(strategies())


def test_one_difference_is_enough() -> None:
    rows = (Comparison("a", "agrees", "x", 0.5, 2.0), Comparison("b", "not run", "y"))
    report = Report("cpu", "pocket", 1.0, {}, rows)
    assert report.agrees
    assert not Report("cpu", "pocket", 1.0, {}, (*rows, Comparison("c", "differs", "z"))).agrees
    assert report.as_json()["rows"][0] == {
        "what": "a",
        "verdict": "agrees",
        "detail": "x",
        "seconds": 0.5,
        "speedup": 2.0,
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(rlhf: Rlhf) -> None:
    out = rlhf("doctor", "--device", "cuda")
    assert out.code == 2
    assert "no CUDA device" in out.err
    assert "--device cpu" in out.err


@pytest.mark.slow
def test_the_whole_check_on_the_cpu(rlhf: Rlhf, tmp_path: Path) -> None:
    out = rlhf("doctor", "--device", "cpu", "--write", str(tmp_path / "doctor.json"))
    assert out.code == 0, out.out
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert written["agrees"]
    assert written["seconds"] < 600
    assert written["versions"]["torch"] == torch.__version__
    verdicts = {row["what"]: (row["verdict"], row["detail"]) for row in written["rows"]}
    assert {verdict for verdict, _ in verdicts.values()} == {"agrees"}
    assert verdicts["checkpoint, resumed"][1] == "equal bit for bit"
    assert {
        "native engine fp32",
        "native engine bf16",
        "strategy ddp, 2 processes",
        "strategy fsdp, 2 processes",
    } <= set(verdicts)

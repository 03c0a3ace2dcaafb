"""`rlhf doctor --device`: what this machine computes, against the plain way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.training import forward_check
from rlhf_core.training.forward import Structure
from rlhf_core.types.errors import RlhfError
from rlhf_core.types.tree import SHARDED
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_preflight.device import casts, forwards, runs
from rlhf_plugin_preflight.device.report import Comparison, Report
from rlhf_plugin_preflight.device.runs import difference, has_device, strategies

Rlhf = Callable[..., Any]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pocket() -> LoadedModel:
    return load_policy(ModelConfig(path="pocket"))


@pytest.mark.slow
def test_the_forwards_of_this_machine_agree(pocket: LoadedModel) -> None:
    rows = list(forwards.compare_forwards(pocket, CPU, "fp32"))
    names = [row.what.removeprefix("forward fp32: ") for row in rows]
    assert names == ["share_prefix", "packing", "chunked_head", "all together"]
    assert {row.verdict for row in rows} == {"agrees"}
    assert all(row.seconds > 0 and row.speedup for row in rows)


@pytest.mark.slow
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
    assert difference({}, {}, start) == difference(start, start, start) == float("inf"), "nothing is compared"
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
    for verdict in ("differs", "failed"):
        assert not Report("cpu", "pocket", 1.0, {}, (*rows, Comparison("c", verdict, "z"))).agrees
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


def trained(monkeypatch: pytest.MonkeyPatch, **changed: float | Exception) -> list[Sequence[str]]:
    """Trainings by name that change the one weight so much, or raise; 1 where nothing is said."""
    asked: list[Sequence[str]] = []

    def run(self: Any, name: str, words: Sequence[str]) -> Any:
        asked.append(words)
        what = changed.get(name, 1.0)
        if isinstance(what, Exception):
            raise what
        for part in ("final", "checkpoints/step-000001", "checkpoints/step-000002"):
            (self.folder / name / part).mkdir(parents=True, exist_ok=True)
        if name == "fsdp":
            (self.folder / name / "checkpoints" / "step-000001" / SHARDED).mkdir()
        save_file({"w": torch.full((4,), what)}, self.folder / name / "final" / "model.safetensors")
        return runs._Run(self.folder / name, 1.0)

    monkeypatch.setattr(runs._Trainings, "_run", run)
    monkeypatch.setattr(runs._Trainings, "_start", lambda self: {"w": torch.zeros(4)})
    monkeypatch.setattr(runs, "strategies", lambda: ["ddp", "fsdp"])
    return asked


def verdicts_of(folder: Path, ranks: int = 2) -> dict[str, str]:
    return {row.what: row.verdict for row in runs.compare_runs("pocket", CPU, ranks, folder)}


def test_a_training_that_fails_is_a_failure_and_so_is_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(monkeypatch, single=RlhfError("rlhf train ended with code 1", why="out of memory"))
    rows = list(runs.compare_runs("pocket", CPU, 2, tmp_path))
    assert [(row.what, row.verdict) for row in rows] == [
        ("training in one process", "failed"),
        ("checkpoint, resumed", "not run"),
        ("strategy ddp, 2 processes", "not run"),
        ("strategy fsdp, 2 processes", "not run"),
    ]
    assert rows[0].detail == "rlhf train ended with code 1; out of memory"
    assert rows[1].detail == "needs the training in one process"
    assert not Report("cpu", "pocket", 1.0, {}, tuple(rows)).agrees


def test_other_weights_differ_and_a_strategy_that_ends_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(monkeypatch, ddp=1.5, fsdp=OSError("no room"))
    assert verdicts_of(tmp_path) == {
        "training in one process": "measured",
        "checkpoint, resumed": "agrees",
        "strategy ddp, 2 processes": "differs",
        "strategy fsdp, 2 processes": "failed",
    }
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"single"}, "what was compared is removed"


def test_trainings_are_compared_in_float32_and_a_card_makes_one_in_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = trained(monkeypatch, bf16=1.1)
    rows = list(runs.compare_runs("pocket", torch.device("cuda"), 2, tmp_path))
    rounded = next(row for row in rows if row.what == "training in bfloat16")
    assert (rounded.verdict, rounded.detail) == ("measured", "float32's change to 0.1 of its norm")
    precisions = [[w for w in words if "precision=" in w] for words in asked if "--resume" not in words]
    assert precisions == [["trainer.precision=fp32"], ["trainer.precision=bf16"], *[["trainer.precision=fp32"]] * 2]
    assert "training in bfloat16" not in verdicts_of(tmp_path), "a CPU computes in float32"


def test_a_training_that_changes_nothing_compares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(monkeypatch, single=0.0, resumed=0.0, ddp=0.0, fsdp=0.0)
    assert set(verdicts_of(tmp_path).values()) == {"measured", "failed"}


def test_ddp_on_one_process_is_not_compared_with_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(monkeypatch)
    found = verdicts_of(tmp_path, ranks=1)
    assert found["strategy ddp, 1 process"] == "not run"
    assert found["strategy fsdp, 1 process"] == "agrees"


def test_what_a_strategy_wrote_by_parts_is_read_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trained(monkeypatch, **{"fsdp-resumed": 1.5})
    what = "checkpoint of fsdp, resumed by one process"
    assert [row for row in verdicts_of(tmp_path).items() if "resumed by" in row[0]] == [(what, "differs")]
    words = asked[-1]
    assert words[:2] == ["--resume", str(tmp_path / "fsdp-resumed")]
    assert "strategy=single" in words
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"single"}


def test_trainings_share_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs.EMBEDDED.all_s <= 240
    monkeypatch.setattr(runs, "EMBEDDED", runs.Limits(10.0, 0.0))
    rows = list(runs.compare_runs("pocket", CPU, 2, tmp_path))
    assert rows[0].verdict == "failed"
    assert "no time left: all trainings together may take 0 s" in rows[0].detail
    assert runs._Trainings("./my-model", CPU, tmp_path).limits is runs.OTHERS


@pytest.mark.parametrize(
    ("drift", "reports", "verdict", "says"),
    [
        (0.001, {"vllm": {"syncs": 2, "canary_largest": 2e-4}}, "agrees", "2 weight syncs, canary to 0.0002 nats"),
        (0.03, {}, "differs", "logprobs after an update to 0.03 nats"),
        (None, {"cache": 3}, "measured", "its logprobs were not compared"),
    ],
)
def test_an_engine_is_judged_after_an_update(
    tmp_path: Path, drift: float | None, reports: dict[str, Any], verdict: str, says: str
) -> None:
    rows = [{"step": 1, "drift/mean_abs": 9.0}, {"step": 2} | ({} if drift is None else {"drift/mean_abs": drift})]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "summary.json").write_text(json.dumps({"reports": reports}))
    row = runs._judged("rollout engine", runs._Run(tmp_path, 1.0))
    assert row.verdict == verdict
    assert says in row.detail


def test_settings_are_those_of_an_engine(rlhf: Rlhf) -> None:
    out = rlhf("doctor", "--device", "cpu", "--set", "trainer.steps=3")
    assert out.code == 2
    assert "only settings of a rollout engine" in out.err


def test_a_strategy_whose_library_is_missing_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trained(monkeypatch)
    monkeypatch.setattr(runs, "lacks", lambda strategy: "its library is not installed" * (strategy == "fsdp"))
    assert verdicts_of(tmp_path)["strategy fsdp, 2 processes"] == "not run"
    assert not any("strategy=fsdp" in words for words in asked)


def test_the_device_is_set_where_a_strategy_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trained(monkeypatch)
    assert has_device("fsdp")
    monkeypatch.setattr(runs, "has_device", lambda strategy: strategy != "fsdp")
    verdicts_of(tmp_path)
    with_device = ["strategy.device=cpu" in words for words in asked if "--resume" not in words]
    assert with_device == [True, True, False]


def test_what_a_training_said_is_kept_when_it_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "import sys, time; print('waiting for rank 1', file=sys.stderr, flush=True); time.sleep(30)"
    right = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda words, **more: right([sys.executable, "-c", said], **more))
    monkeypatch.setattr(runs, "EMBEDDED", runs.Limits(0.7, 60.0))
    with pytest.raises(RlhfError, match="waiting for rank 1"):
        runs._Trainings("pocket", CPU, tmp_path)("single", "single", 1)


def test_what_a_model_does_not_allow_is_not_called_equal(pocket: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwards, "structure", lambda model: Structure(split=False, share=False, pack=False))
    rows = list(forwards.compare_forwards(pocket, CPU, "fp32"))
    assert [(row.what, row.verdict) for row in rows] == [
        ("forward fp32: share_prefix", "not run"),
        ("forward fp32: packing", "not run"),
        ("forward fp32: chunked_head", "not run"),
    ]
    assert forwards._refused("packing", torch.device("cuda"), runs_on_cpu=True).verdict == "differs"


def only(monkeypatch: pytest.MonkeyPatch, forward: Any, trainings: Any) -> None:
    """A check of one forward and one training."""
    monkeypatch.setattr(forwards, "compare_forwards", forward)
    monkeypatch.setattr(forwards, "compare_engine", lambda *args: iter(()))
    monkeypatch.setattr(casts, "compare_casts", lambda *args: iter(()))
    monkeypatch.setattr(runs, "compare_runs", trainings)
    monkeypatch.setattr("rlhf_core.models.load.load_policy", lambda config: None)
    monkeypatch.setattr("rlhf_core.models.layers.matmul.use_matmul_backend", lambda kind: None)


def good(*args: Any) -> Iterator[Comparison]:
    yield Comparison("good", "agrees", "x")


def broken(*args: Any) -> Iterator[Comparison]:
    yield Comparison("before", "agrees", "x")
    raise RuntimeError("CUDA error: no kernel image\nsecond line")


def test_one_that_raises_does_not_end_the_check(rlhf: Rlhf, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, broken, good)
    out = rlhf("doctor", "--device", "cpu", "--json", "--write", "doctor.json")
    assert out.code == 1
    report = json.loads(out.out)
    assert [(row["what"], row["verdict"], row["detail"]) for row in report["rows"]] == [
        ("before", "agrees", "x"),
        ("forward fp32", "failed", "RuntimeError: CUDA error: no kernel image"),
        ("before", "agrees", "x"),
        ("forward bf16", "failed", "RuntimeError: CUDA error: no kernel image"),
        ("good", "agrees", "x"),
    ]
    assert not report["agrees"]
    assert json.loads(Path("doctor.json").read_text()) == report
    assert "differs or failed" in rlhf("doctor", "--device", "cpu").out


def test_an_interrupted_check_is_written(rlhf: Rlhf, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> Iterator[Comparison]:
        raise KeyboardInterrupt
        yield

    only(monkeypatch, good, interrupted)
    out = rlhf("doctor", "--device", "cpu", "--write", "doctor.json")
    assert out.code == 130
    rows = json.loads(Path("doctor.json").read_text())["rows"]
    assert [(row["what"], row["verdict"]) for row in rows][-2:] == [("good", "agrees"), ("all others", "not run")]


def test_a_check_that_agrees_and_multiplies_as_a_training_does(rlhf: Rlhf, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, good, good)
    kinds: list[str] = []
    monkeypatch.setattr("rlhf_core.models.layers.matmul.use_matmul_backend", kinds.append)
    out = rlhf("doctor", "--device", "cpu")
    assert out.code == 0
    assert "all that ran agrees" in out.out
    assert kinds == ["auto"]


def test_a_report_that_cannot_be_written_is_refused_first(rlhf: Rlhf) -> None:
    out = rlhf("doctor", "--device", "cpu", "--write", "no/such/doctor.json")
    assert out.code == 2
    assert "cannot be written" in out.err


@pytest.mark.parametrize(
    "words", [("--write", "a.json"), ("--model", "pocket"), ("--ranks", "2"), ("--set", "rollout.name=vllm")]
)
def test_options_of_the_device_check_need_a_device(rlhf: Rlhf, words: tuple[str, str]) -> None:
    out = rlhf("doctor", *words)
    assert out.code == 2
    assert f"{words[0]} needs --device" in out.err


PROMISED_S, BUSY_S = 180, 300
"""Seconds on a quiet CPU, as docs/scaling.md says, and what a busy one may take."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(BUSY_S + 60)
def test_the_whole_check_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--device", "cpu", "--write", str(tmp_path / "doctor.json")]
    out = subprocess.run(
        [sys.executable, "-m", "rlhf_core.cli.main", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=BUSY_S + 30,
        check=False,
    )
    assert out.returncode == 0, out.stdout + out.stderr
    written = json.loads((tmp_path / "doctor.json").read_text())
    with capsys.disabled():
        print(f"\nrlhf doctor --device cpu: {written['seconds']:.0f} s, promised {PROMISED_S} s on a quiet machine")
    assert written["agrees"]
    assert written["seconds"] < BUSY_S
    assert written["versions"]["torch"] == torch.__version__
    verdicts = {row["what"]: (row["verdict"], row["detail"]) for row in written["rows"]}
    others = {what: verdict for what, (verdict, _) in verdicts.items() if verdict != "agrees"}
    if find_spec("deepspeed") is None:
        assert others.pop("strategy deepspeed, 2 processes") == "not run"
    assert others == {"training in one process": "measured"}
    assert verdicts["checkpoint, resumed"][1] == "equal bit for bit"
    assert {
        "native engine fp32",
        "native engine bf16",
        "strategy ddp, 2 processes",
        "strategy fsdp, 2 processes",
        "checkpoint of fsdp, resumed by one process",
    } <= set(verdicts)

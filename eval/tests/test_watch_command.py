"""`rlhf eval watch`: checkpoints of a run, and folders of earlier versions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import ConfigError
from rlhf_core.config.plan import Plan
from rlhf_core.data import write_json
from rlhf_core.models import ModelConfig
from rlhf_eval.cli import suite_of
from rlhf_eval.harness import Job
from rlhf_eval.store import ResultFolder, named_folder
from rlhf_eval.watch import Watcher, linked_copy

from .conftest import ARITHMETIC

Arithmetic = Callable[..., dict[str, Any]]
Rlhf = Callable[..., Any]


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.long
@pytest.mark.slow
def test_watch_evaluates_checkpoints_that_are_adapters(rlhf: Rlhf, tmp_path: Path) -> None:
    import rlhf_core

    settings = {
        "trainer": {"max_steps": 2, "checkpoint_every": 1, "eval_samples": 2, "batch_size": 4},
        "trainer.optimizer.learning_rate": 0.05,
        "trainer.optimizer.warmup_steps": 0,
        "model.lora": {"r": 2},
    }
    rlhf_core.train("sft", settings=settings, run_dir=str(tmp_path / "run"), progress=False)
    options = (*ARITHMETIC, "--limit", "4", "--out", "w", "--once", "--json")
    ran = rlhf("eval", "watch", tmp_path / "run", *options)
    assert ran.code == 0, ran.err
    rows = json.loads(ran.out)["checkpoints"]
    assert [r["checkpoint"] for r in rows] == ["start", "step-000001", "step-000002"], "final is step 2 once more"
    texts = {
        name: [r["completion"] for r in jsonl(Path("w") / name / "rows.jsonl")] for name in ("start", "step-000002")
    }
    assert texts["start"] != texts["step-000002"]
    merged = rlhf("eval", *ARITHMETIC, "--limit", "4", "--model", tmp_path / "run/final", "--out", "m", "--json")
    assert merged.code == 0, merged.err
    assert texts["step-000002"] == [r["completion"] for r in jsonl(Path("m/rows.jsonl"))]
    again = json.loads(rlhf("eval", "watch", tmp_path / "run", *options).out)
    assert again["checkpoints"] == rows, "nothing is evaluated twice"


@pytest.mark.slow
def test_watch_keeps_what_it_evaluated_and_names_what_it_missed(rlhf: Rlhf, trained: Path, tmp_path: Path) -> None:
    """The run removes its models while the first one is evaluated; later the watcher is started again."""
    run, ctx = Path(shutil.copytree(trained, tmp_path / "run")), context_of(open_registry())
    suite = suite_of(ctx, "prompts", dataset="pocket/arithmetic", verifier="numeric", limit=8, max_tokens=12)
    removed = [run / "checkpoints" / "step-000001", run / "checkpoints" / "step-000002", run / "final"]
    messages: list[str] = []

    def say(text: str) -> None:
        messages.append(text)
        for folder in removed if messages[-2:][0].startswith("start:") else ():
            shutil.rmtree(folder, ignore_errors=True)

    summary = Watcher(str(run), [suite], ctx).follow(once=True, poll_s=1, patience_s=1, say=say)[0]
    first = summary["checkpoints"]
    assert [r["checkpoint"] for r in first] == ["start", "step-000001"]
    assert summary["missed"] == ["step-000002", "final"]
    assert sum("was removed by the run" in text for text in messages) == 2
    shutil.copytree(trained / "final", run / "final")
    again = json.loads(rlhf("eval", "watch", run, *ARITHMETIC, "--limit", 8, "--json").out)
    assert again["checkpoints"][:2] == first
    assert [r["checkpoint"] for r in again["checkpoints"][2:]] == ["final"]
    assert again["missed"] == ["step-000002"]
    assert again["best"] == max(again["checkpoints"], key=lambda r: r["value"])["checkpoint"]
    assert json.loads((run / "evals/prompts/watch.json").read_text()) == again
    other_limit = rlhf("eval", "watch", run, *ARITHMETIC, "--limit", 7, "--no-base")
    assert (other_limit.code, "rows.count: 8 then, 7 now" in other_limit.err) == (2, True), other_limit.err


def test_a_folder_from_before_a_setting_was_added_goes_on(tmp_path: Path) -> None:
    ctx = context_of(open_registry())

    def settings(**more: Any) -> dict[str, Any]:
        suite = suite_of(ctx, "prompts", dataset="pocket/arithmetic", verifier="numeric", settings=(), **more)
        return Job(suite, ModelConfig()).settings(ctx)

    now = settings(limit=4)
    then = json.loads(json.dumps(now))
    for part, key in (("suite", "where"), ("suite", "pass_from"), ("model", "chat_template_kwargs"),
                      ("model", "assistant_prefix"), ("model", "quantize")):  # fmt: skip
        del then[part][key]
    write_json(tmp_path / "settings.json", then)
    ResultFolder(tmp_path, now).check()
    assert named_folder(tmp_path, [], "m", now) == named_folder(tmp_path, [], "m", then)
    assert ResultFolder(tmp_path, now).settings == then
    with pytest.raises(ConfigError, match="pass_from"):
        ResultFolder(tmp_path, settings(limit=4, pass_from=0.5)).check()


def test_the_base_is_asked_in_the_form_of_the_run(tmp_path: Path) -> None:
    """The checkpoints have the form in the template that is saved with them."""
    form = {"chat_template": None, "chat_template_kwargs": {"enable_thinking": False}, "assistant_prefix": "<think>"}
    model = {"path": "pocket", "dtype": "float32", "lora": None, **form}
    write_json(tmp_path / "plan.json", asdict(Plan({"model": model}, (), {}, 0, 1)))
    ctx = context_of(open_registry())
    watcher = Watcher(str(tmp_path), [suite_of(ctx, "prompts", dataset="pocket/arithmetic", verifier="numeric")], ctx)
    base = ModelConfig(**watcher.start, **watcher.model).model_dump()
    assert {key: base[key] for key in form} == form
    assert not set(watcher.model) & set(form)


@pytest.mark.slow
def test_several_suites_are_watched_with_one_loaded_model(
    rlhf: Rlhf, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlhf_eval.harness import Job

    loaded: list[str] = []
    load = Job.load

    def counted(job: Job, ctx: Any) -> Any:
        loaded.append(job.model.path)
        return load(job, ctx)

    monkeypatch.setattr(Job, "load", counted)
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    rows = tmp_path / "sums.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{i} + 1?", "answer": f"#### {i + 1}"}) + "\n" for i in range(3)))
    words = (
        "prompts",
        "gsm8k",
        "--dataset",
        "prompts=pocket/arithmetic",
        "--data",
        f"gsm8k={rows}",
        "--once",
        "--json",
    )
    more = ("--verifier", "prompts=numeric", "--limit", 3, "--max-tokens", 4, "--no-base")
    ran = rlhf("eval", "watch", run, *words, *more)
    assert ran.code == 0, ran.err
    summaries = json.loads(ran.out)
    assert [s["suite"] for s in summaries] == ["prompts", "gsm8k"]
    assert [[c["checkpoint"] for c in s["checkpoints"]] for s in summaries] == [["step-000001", "step-000002"]] * 2
    assert len(loaded) == 2, "once for each checkpoint"
    assert json.loads((run / "evals/gsm8k/watch.json").read_text()) == summaries[1]
    again = rlhf("eval", "watch", run, *words, *more)
    assert (json.loads(again.out), len(loaded)) == (summaries, 2)
    unnamed = rlhf("eval", "watch", run, "prompts", "gsm8k", "--data", rows, "--once")
    assert (unnamed.code, "does not say for which suite" in unnamed.err) == (2, True)


def test_what_is_held_stays_when_the_run_removes_it(tmp_path: Path) -> None:
    model = tmp_path / "checkpoint" / "model"
    (model / "trunk").mkdir(parents=True)
    (model / "trunk" / "weights").write_bytes(b"123")
    with linked_copy(model, tmp_path) as place:
        shutil.rmtree(model)
        assert place is not None
        assert (place / "trunk" / "weights").read_bytes() == b"123"
    with linked_copy(model, tmp_path) as place:
        assert place is None
    assert not list(tmp_path.glob(".held-*"))

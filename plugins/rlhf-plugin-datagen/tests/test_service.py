"""Preferences judged through the real client of a service that fails: a test server that speaks its API."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import Registry
from rlhf_core.data import read_jsonl
from rlhf_plugin_datagen.outside import open_datasets
from rlhf_plugin_judge.stand_in import Service, StandIn
from rlhf_plugin_judge.stand_in_tools import fitting_answer

pytestmark = [
    pytest.mark.usefixtures("rule_judge"),
    pytest.mark.skipif(find_spec("anthropic") is None, reason="anthropic is not installed"),
]


def shorter(body: Mapping[str, Any]) -> str:
    """Prefers the shorter response, wherever it stands."""
    text = str(body["messages"][0]["content"])
    a, b = (re.search(f"<response_{x}-\\w+>\n(.*?)\n</response_{x}-", text, re.DOTALL) for x in "ab")
    assert a is not None
    assert b is not None
    return json.dumps({"better": "A" if len(a[1]) < len(b[1]) else "B", "why": "principle 6"})


@pytest.mark.slow
def test_a_failing_service_costs_no_row_and_a_rerun_nothing(
    tmp_path: Path, command: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test-0123456789")
    prompts, out, again, capped = (
        tmp_path / name for name in ("questions.jsonl", "out.jsonl", "again.jsonl", "cap.jsonl")
    )
    prompts.write_text("".join(json.dumps({"id": str(i), "prompt": f"Question {i}?"}) + "\n" for i in range(16)))
    with StandIn(Service(answer=shorter, faults={"429": 0.2, "500": 0.1, "prose": 0.1})) as server:
        shared = (
            "data",
            "generate",
            "preferences",
            "--generator",
            "rule",
            "--judge",
            "anthropic",
            "--set",
            f"base_url={server.url}",
            "--set",
            "backoff_s=0.01",
            "--set",
            "max_attempts=30",
            "--dataset",
            prompts,
            "--batch-size",
            5,
        )
        for count in (6, 16):  # stopped after six, gone on with
            code, err = command(*shared, "--count", count, "--output", out)
            assert code == 0, err
        requests_before = server.service.seen["arrivals"]
        code, err = command(*shared, "--output", again)
        assert code == 0, err
        assert server.service.seen["arrivals"] == requests_before  # every answer was kept
        code, err = command(*shared, "--set", "max_cost_usd=0.000001", "--set", "cache=false", "--output", capped)
        assert code == 1
        assert "stopped: nothing of this batch was answered" in err
        assert server.service.seen["arrivals"] == requests_before
    assert server.service.seen["429"] > 0
    rows, left_out = (list(read_jsonl(p)) for p in (out, out.with_name("out.jsonl.left_out.jsonl")))
    assert sorted(r["id"] for r in (*rows, *left_out)) == sorted(f"questions/{i}" for i in range(16))
    assert len(rows) > 6
    assert all(len(r["chosen"]) <= len(r["rejected"]) for r in rows)
    assert sum(r["usage"]["cost_usd"] for r in rows) > 0
    rerun_rows = list(read_jsonl(again))
    assert [(r["id"], r["chosen"], r["why"]) for r in rerun_rows] == [(r["id"], r["chosen"], r["why"]) for r in rows]
    usages = [r["usage"] for r in rerun_rows]
    assert all(u["cached"] >= 2 for u in usages)
    assert sum(u["cost_usd"] for u in usages) < sum(r["usage"]["cost_usd"] for r in rows)
    assert not list(read_jsonl(capped))


def asked(server: StandIn, kind: str, out: Path, *more: object, judge: str = "anthropic") -> tuple[object, ...]:
    """A command that asks the service for everything: responses, verdicts, critiques and grades."""
    settings = [f"base_url={server.url}"]
    if judge == "openai":
        settings = [f"base_url={server.url}/v1", "model=any", "prices={any: {input: 1, output: 5}}"]
    both = [word for role in ("set", "generator-set") for text in settings for word in (f"--{role}", text)]
    return (
        "data",
        "generate",
        kind,
        "--judge",
        judge,
        "--generator",
        judge,
        *both,
        "--count",
        6,
        "--output",
        out,
        *more,
    )


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sk-ant-test-0123456789")


@pytest.mark.slow
@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    ("kind", "train"), [("preferences", "dpo"), ("preferences", "reward_model"), ("sft", "sft"), ("grades", "")]
)
def test_rows_made_with_the_stand_in_are_trained_on(
    kind: str, train: str, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    from rlhf_plugin_rubric.graded import read_rows
    from rlhf_plugin_rubric.rubric import load_rubric

    out = tmp_path / "made.jsonl"
    with StandIn() as server:
        code, err = command(*asked(server, kind, out))
    assert code == 0, err
    assert len(list(read_jsonl(out))) == 6
    if not train:
        datasets = open_datasets(Registry(), str(out), heldout_fraction=0.0)
        assert len(read_rows(datasets, "train", load_rubric("assistant"), Counter())) == 6
        return
    one_step = [f"trainer.{name}" for name in ("max_steps=1", "batch_size=2", "micro_batch_size=2")]
    words = [word for text in (*one_step, "threads=1", "dataset.heldout_fraction=0.2") for word in ("--set", text)]
    code, err = command("train", "--algo", train, "--dataset", out, *words, "--run-dir", tmp_path / "run")
    assert code == 0, err


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("judge_by", ["length", "hash"])
@pytest.mark.parametrize(
    ("kind", "trainers"),
    [("preferences", ("dpo", "kto", "reward_model")), ("sft", ("sft",)), ("grades", ("rubric_model",))],
)
def test_trainers_accept_every_kind_that_the_stand_in_s_answers_make(
    kind: str, trainers: tuple[str, ...], judge_by: str, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    out = tmp_path / "made.jsonl"
    with StandIn(Service(answer=fitting_answer(judge_by))) as server:
        code, err = command(*asked(server, kind, out))
    assert code == 0, err
    assert len(list(read_jsonl(out))) == 6
    for trainer in trainers if judge_by == "hash" or kind != "preferences" else trainers[:1]:
        sizes = ("--set", "trainer.batch_size=2", "--set", "trainer.micro_batch_size=2")
        code, err = command("train", "--algo", trainer, "--dataset", out, *sizes, "--dry-run")
        assert code == 0, f"{trainer}: {err}"


@pytest.mark.slow
@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("kind", ["preferences", "sft", "grades"])
def test_chat_completions_make_rows_too(kind: str, tmp_path: Path, command: Callable[..., tuple[int, str]]) -> None:
    with StandIn() as server:
        code, err = command(*asked(server, kind, tmp_path / "made.jsonl", judge="openai"))
    assert code == 0, err
    assert len(list(read_jsonl(tmp_path / "made.jsonl"))) == 6


@pytest.mark.slow
@pytest.mark.usefixtures("key")
def test_the_pocket_model_s_responses_fit_without_an_option(
    tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    """What could not be made into rows is counted and said, and no failure where others were."""
    with StandIn() as server:
        judge = ("--judge", "anthropic", "--set", f"base_url={server.url}")
        words = ("data", "generate", "preferences", *judge, "--count", 8, "--output", tmp_path / "made.jsonl")
        code, err = command(*words)
    assert code == 0, err
    made = len(list(read_jsonl(tmp_path / "made.jsonl")))
    assert made >= 4
    assert f"{made} rows, {8 - made} left out, 0 without an answer" in err


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("kind", ["preferences", "sft", "grades"])
def test_a_service_that_answers_nothing_of_use_is_a_failure_with_its_reason(
    kind: str, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    out = tmp_path / "made.jsonl"
    more = ("--set", "max_attempts=1", "--generator-set", "max_attempts=1")
    with StandIn(Service(faults={"500": 1.0})) as server:
        code, err = command(*asked(server, kind, out, *more))
    assert code == 1
    assert f"no row of {kind} was made of 6 prompts" in err
    assert "6 without an answer (first: error: " in err

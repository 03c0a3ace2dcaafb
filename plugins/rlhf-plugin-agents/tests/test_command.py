"""`rlhf eval SUITE --agent A`: rows, report, resume, and what is refused before anything is played."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.models import ModelConfig
from rlhf_plugin_agents.agents.config import AGENTS, ReactConfig
from rlhf_plugin_agents.backends.base import ContextFull, ModelRequest
from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_plugin_agents.backends.native import NativeBackend
from rlhf_plugin_agents.harness import Job, carry_out, evaluate, prepare
from rlhf_plugin_agents.suites.config import AgentBenchMini, TauBench


@pytest.fixture
def evaluated(rlhf: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Runs the command in an empty folder and returns what it prints for machines."""

    def run(*words: str) -> dict[str, Any]:
        done = rlhf("eval", *words, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    return run


def test_oracle_by_category_with_statistics(evaluated: Any) -> None:
    result = evaluated(
        "agentbench_mini", "--agent", "react", "--agent", "zero_shot", "--backend", "scripted", "--trials", "2",
        "--max-per-category", "3",
    )  # fmt: skip
    react, zero_shot = result["evaluations"]
    assert react["right"]["value"] == 1.0
    assert react["right"]["low"] == pytest.approx(0.701, abs=1e-3)  # Wilson at 9 of 9
    assert react["process"] == 1.0
    assert zero_shot["process"] == 0.0
    assert set(react["categories"]) == {"tool_use", "multi_step", "failure_recovery"}
    assert react["pass^k"] == {"1": 1.0, "2": 1.0}
    assert react["rows"] == 18
    (pair,) = result["comparisons"]
    assert pair["difference"]["value"] == 0
    assert {c: p["tasks"] for c, p in pair["categories"].items()} == dict.fromkeys(react["categories"], 3)
    assert pair["mcnemar"] == {"lost": 0, "gained": 0, "p": 1.0}


def test_chosen_tasks_and_the_wrong_script(evaluated: Any) -> None:
    words = ("--script", "wrong", "--category", "tool_use", "--category", "failure_recovery", "--max-per-category", "3")
    (one,) = evaluated("agentbench_mini", *words)["evaluations"]
    assert (one["tasks"], one["right"]["value"]) == (6, 0.0)


def test_several_suites_and_tiers(evaluated: Any) -> None:
    both = evaluated("agents", "agentbench_mini", "chains", "--backend", "scripted", "--max-per-category", "1")
    assert [(e["suite"], e["tasks"]) for e in both["evaluations"]] == [("agentbench_mini", 3), ("chains", 4)]
    assert not both["comparisons"]
    (one,) = evaluated("chains", "--backend", "scripted", "--tier", "hops_2", "--levels", "2,4")["evaluations"]
    assert one["tasks"] == 3


def test_the_same_command_goes_on_and_plays_missing_tasks_again(evaluated: Any) -> None:
    words = ("agentbench_mini", "--backend", "scripted", "--out", "out", "--max-per-category", "2")
    whole = evaluated(*words)["evaluations"][0]
    rows = (Path("out") / "rows.jsonl").read_text().splitlines()
    lost = json.loads(rows[1]) | {"value": None, "right": None, "stop_reason": "backend_error"}
    (Path("out") / "rows.jsonl").write_text("\n".join([rows[0], json.dumps(lost), *rows[3:]]) + "\n" + rows[2][:40])
    again = evaluated(*words)["evaluations"][0]
    assert (again["rows"], again["missing"], again["right"]) == (6, 0, whole["right"])
    kept = (Path("out") / "rows.jsonl").read_text().splitlines()
    assert rows[0] in kept, "what has a verdict is not played again"


def test_a_recording_replays_to_the_same_verdicts(evaluated: Any) -> None:
    """Its trials too, which are played at the same time."""
    words = ("--category", "multi_step", "--trials", "3", "--workers", "6", "--max-per-category", "4")
    one = evaluated("agentbench_mini", "--backend", "scripted", "--out", "first", *words)["evaluations"][0]
    two = evaluated("agentbench_mini", "--replay", "first", *words)["evaluations"][0]
    assert (two["right"], two["process"], two["calls"]) == (one["right"], one["process"], one["calls"])
    assert (two["rows"], two["missing"]) == (12, 0)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_recording_with_calls_as_text_replays(agent: str, evaluated: Any) -> None:
    words = ("agentbench_mini", "--agent", agent, "--max-per-category", "1")
    recorded = evaluated(*words, "--backend", "scripted", "--set", "backend.takes_tools=false", "--out", "text")
    (one,), (two,) = recorded["evaluations"], evaluated(*words, "--replay", "text")["evaluations"]
    assert (two["missing"], two["right"], two["calls"]) == (0, one["right"], one["calls"])


def test_several_evaluations_are_replayed_each_from_its_own_recording(evaluated: Any, rlhf: Any) -> None:
    """`multi_agent` and `scratchpad` begin with the same request."""
    words = ("agents", "agentbench_mini", "chains", "--agent", "multi_agent", "--agent", "scratchpad",
             "--set", "chains.hops=[2]", "--set", "chains.count=1",
             "--set", "agentbench_mini.category=[tool_use]", "--set", "agentbench_mini.max_per_category=1")  # fmt: skip
    played = evaluated(*words, "--backend", "scripted", "--out", "first")["evaluations"]
    again = evaluated(*words, "--replay", "first", "--out", "again")["evaluations"]
    assert [(e["missing"], e["right"], e["requests"]) for e in again] == [
        (0, e["right"], e["requests"]) for e in played
    ]
    done = rlhf("eval", "agents", "chains", "injection", "--agent", "multi_agent", "--replay", "first", "--out", "no")
    assert (done.code, Path("no").exists()) == (2, False), "what has no recording is refused before anything is played"


def test_what_a_backend_does_not_answer_is_missing(evaluated: Any) -> None:
    few = ("--max-per-category", "2")
    evaluated("agentbench_mini", "--backend", "scripted", "--out", "first", "--category", "multi_step", *few)
    (one,) = evaluated("agentbench_mini", "--replay", "first", "--category", "tool_use", *few)["evaluations"]
    assert (one["missing"], one["right"]["value"]) == (2, None)
    assert one["stop_reasons"] == {"backend_error": 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--agent", "rect"], "there is no agent 'rect'"),
        (["--backend", "oracle"], "there is no backend 'oracle'"),
        (["--category", "tools"], "has no category 'tools'"),
        (["--levels", "2"], "has no level '2'"),
        (["--levels", "one"], "levels are numbers"),
        (["--backend", "replay"], "nothing to replay"),
        (["--replay", "nowhere"], "there are no trajectories in 'nowhere'"),
        (["--script", "wrong", "--backend", "native"], "--script is for the backend scripted"),
        (["--backend", "scripted", "--model", "M"], "has no model"),
        (["--set", "agent_settings.max_turn=3"], "max_turn"),
        (["--set", "backend.scrip=wrong", "--backend", "scripted"], "scrip"),
        (["--model", "no/such-model-here"], "no/such-model-here"),
        (["agentbench_mini"], "is named twice"),
        (["--agent", "react", "--agent", "react"], "agent 'react' is named twice"),
        (["--data", "mine.jsonl"], "does not read 'mine.jsonl'"),
        (["--data", "one.jsonl", "--data", "two.jsonl"], "names 2 places for suite 'agentbench_mini'"),
        (["gsm8k"], "gsm8k"),
    ],
)
def test_refused_before_anything_is_played(words: list[str], message: str, rlhf: Any) -> None:
    done = rlhf("eval", "agentbench_mini", *words)
    assert done.code == 2
    assert message in done.err
    assert not list(Path().rglob("rows.jsonl"))


def test_a_recording_of_another_version_is_refused(rlhf: Any) -> None:
    Path("old.jsonl").write_text(json.dumps({"trajectory": {"version": 99}}) + "\n")
    done = rlhf("eval", "agentbench_mini", "--replay", "old.jsonl")
    assert (done.code, "a trajectory of version 99 cannot be read" in done.err) == (2, True)
    assert not list(Path().rglob("rows.jsonl"))


@pytest.mark.parametrize("text", ["[1, 2]", '{"trajectory": 5}', "no json", '{"version": 1, "turns": 3}'])
def test_what_is_no_recording_is_refused(text: str, rlhf: Any) -> None:
    Path("odd.jsonl").write_text(text + "\n")
    done = rlhf("eval", "agentbench_mini", "--replay", "odd.jsonl")
    assert (done.code, "odd.jsonl" in done.err) == (2, True), done.err


def test_another_recording_in_the_same_place_is_another_evaluation(evaluated: Any) -> None:
    few = ("--max-per-category", "1")
    replays: list[Any] = []
    for script in ("oracle", "wrong"):
        evaluated("agentbench_mini", "--script", script, "--out", script, *few)
        Path("here.jsonl").write_bytes((Path(script) / "rows.jsonl").read_bytes())
        replays += evaluated("agentbench_mini", "--replay", "here.jsonl", *few)["evaluations"]
    assert [(r["right"]["value"], r["missing"]) for r in replays] == [(1.0, 0), (0.0, 0)]


def test_two_processes_do_not_play_into_one_folder(ctx: Any, tmp_path: Path, rlhf: Any) -> None:
    job = Job(AgentBenchMini(max_per_category=1), ReactConfig(), ScriptedConfig())
    before = prepare(job, ctx, tmp_path / "out")
    with before.folder.writing():
        done = rlhf("eval", "agentbench_mini", "--backend", "scripted", "--max-per-category", "1",
                    "--out", str(tmp_path / "out"))  # fmt: skip
        assert (done.code, "another process plays into" in done.err) == (2, True), done.err
    evaluate(job, ctx, tmp_path / "out")
    _, report = carry_out(before, ctx, 1, lambda text: None)
    assert report["rows"] == 3, "what was played since is not played again"


def test_broken_files_of_a_folder_are_named(evaluated: Any, rlhf: Any) -> None:
    words = ("agentbench_mini", "--backend", "scripted", "--out", "out", "--max-per-category", "1")
    evaluated(*words)
    for file in ("rows.jsonl", "settings.json"):
        (Path("out") / file).write_text("{\n")
        done = rlhf("eval", *words)
        assert (done.code, f"{file}' cannot be read" in done.err) == (2, True), done.err


def test_a_suite_raises_limits_and_one_setting_leaves_the_others() -> None:
    tau = TauBench(agent_settings={"max_turn_tokens": 300}).agent_config("react")
    assert (tau.max_turn_tokens, tau.max_turns, tau.max_calls) == (300, 30, 40)
    assert TauBench().agent_config("scratchpad").max_turns == 64, "more than the suite wants"
    assert TauBench(agent_settings={"max_turns": 5}).agent_config("scratchpad").max_turns == 5


def test_a_folder_of_another_evaluation_is_refused(evaluated: Any, rlhf: Any) -> None:
    evaluated("agentbench_mini", "--backend", "scripted", "--out", "out", "--max-per-category", "1")
    done = rlhf("eval", "agentbench_mini", "--script", "wrong", "--out", "out", "--max-per-category", "1")
    assert done.code == 2
    assert "they differ in backend" in done.err


def test_a_policy_in_training_plays(tmp_path: Path) -> None:
    """As a benchmark of a run: the engine that it is given answers, and the run keeps what was said."""
    from rlhf_core.cli import context_of, load_sampler, open_registry

    registry = open_registry()
    settings = {"category": ["failure_recovery"], "max_per_category": 1, "agent_settings": {"max_turn_tokens": 8}}
    policy, engine = load_sampler(registry, ModelConfig(path="pocket"))
    backend = NativeBackend(policy, engine)
    request = ModelRequest(({"role": "user", "content": "2 + 2?"},), max_tokens=8)
    reply = backend.complete(request)
    assert 0 < reply.completion_tokens <= 8
    assert backend.complete(request) == reply, "the seed alone decides it"
    with pytest.raises(ContextFull):
        backend.complete(ModelRequest(({"role": "user", "content": "2 + 2? " * 500},)))
    ctx = context_of(registry, policy=policy).with_(run_dir=tmp_path)
    metrics = registry.config("benchmark", "agentbench_mini", settings).build(ctx).evaluate(engine, 3)
    assert set(metrics) == {
        f"{c}{n}" for c in ("", "failure_recovery/") for n in ("right", "answer", "process", "calls", "missing")
    }
    (play,) = map(json.loads, (tmp_path / "plays.jsonl").read_text().splitlines())
    assert (play["benchmark"], play["agent"], play["policy_version"]) == ("agentbench_mini", "react", 3)
    assert [m["role"] for m in play["messages"]][:2] == ["system", "user"]

"""The real SDKs against a service on this machine whose model is the suite's oracle: agents, resume, cap, bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_plugin_agents.backends.paid import model_reply
from rlhf_plugin_agents.stand_in import oracle
from rlhf_plugin_agents.suites.config import AgentBenchMini
from rlhf_plugin_judge.replies import ServiceReply
from rlhf_plugin_judge.stand_in import Service, StandIn

AGENTS = ("zero_shot", "react", "plan_and_execute", "multi_agent")


@pytest.fixture
def serve(ctx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StandIn]]:
    """``serve(faults={...})``: the oracle of ``agentbench_mini`` as a service, with an empty cache and keys."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "stand-in")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    answer, running = oracle(AgentBenchMini().tasks(ctx)), list[StandIn]()

    def start(**settings: Any) -> StandIn:
        running.append(StandIn(Service(**{"answer": answer, "models": ("oracle",), **settings})).__enter__())
        return running[-1]

    yield start
    for server in running:
        server.__exit__()


def words(backend: str, server: StandIn, **settings: Any) -> list[str]:
    model, path = ("oracle", "/v1") if backend == "openai" else ("claude-haiku-4-5", "")
    prices = {"backend.prices": "{oracle: {input: 1, output: 5}}"} if backend == "openai" else {}
    given = {"backend.base_url": server.url + path, "backend.backoff_s": 0.01, **prices, **settings}
    return ["--backend", backend, "--model", model, *(w for k, v in given.items() for w in ("--set", f"{k}={v}"))]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "agents"), [("anthropic", AGENTS[2:]), ("openai", AGENTS[:2])])
def test_agents_play_and_nothing_is_paid_twice(backend: str, agents: Any, serve: Any, rlhf: Any) -> None:
    """Faults that cost nothing; then a folder that is lost: kept answers give the same rows and the same cost."""
    server = serve(faults={"429": 0.1, "500": 0.05}, retry_after=0.01)
    command = [
        "agentbench_mini", *words(backend, server), "--out", "out", "--max-per-category", "1",
        *(w for a in agents for w in ("--agent", a)),
    ]  # fmt: skip
    done = rlhf("eval", *command, "--json")
    assert done.code == 0, done.err
    first = json.loads(done.out)["evaluations"]
    for one in first:
        assert (one["right"]["value"], one["missing"], one["tasks"]) == (1.0, 0, 3), one
        assert one["cost_usd"] > 0
        assert one["calls"] == (0 if one["agent"] == "zero_shot" else pytest.approx(5 / 3, abs=1))
        assert one["process"] == (0.0 if one["agent"] == "zero_shot" else 1.0)
    seen = server.service.seen
    # Planners of two agents ask the same: paid once, and a part of what either costs.
    assert 0.5 * seen["billed_nano"] < sum(one["cost_usd"] for one in first) * 1e9 < 2 * seen["billed_nano"]
    assert set(server.service.billed.values()) == {1}
    arrivals = seen["arrivals"]
    shutil.rmtree(Path("out") / f"agentbench_mini-{agents[1]}")
    again = json.loads(rlhf("eval", *command, "--json").out)["evaluations"]
    assert seen["arrivals"] == arrivals
    assert [e["cost_usd"] for e in again] == [pytest.approx(e["cost_usd"]) for e in first]
    assert [e["process"] for e in again] == [e["process"] for e in first]


@pytest.mark.slow
def test_the_cap_leaves_tasks_missing_and_a_higher_one_goes_on(serve: Any, rlhf: Any) -> None:
    server = serve()
    common = ["agentbench_mini", "--agent", "zero_shot", "--out", "out", "--category", "tool_use", "--workers", "1"]
    done = rlhf("eval", *common, *words("openai", server, **{"backend.max_cost_usd": 0.0038}), "--json")
    (one,) = json.loads(done.out)["evaluations"]
    assert 0 < one["missing"] < 12
    assert one["right"]["value"] == 1.0, "missing is not wrong"
    assert server.service.seen["billed_nano"] <= 0.0038e9
    row = next(r for r in map(json.loads, (Path("out") / "rows.jsonl").open()) if r["value"] is None)
    assert "spend cap is reached" in row["detail"]
    (two,) = json.loads(rlhf("eval", *common, *words("openai", server), "--json").out)["evaluations"]
    assert (two["missing"], two["rows"]) == (0, 12)
    assert set(server.service.billed.values()) == {1}


def test_a_server_without_tools_gets_calls_as_text(serve: Any, rlhf: Any) -> None:
    server = serve(tools=False)
    given = ["agentbench_mini", *words("openai", server), "--max-per-category", "1", "--out", "out"]
    done = rlhf("eval", *given)
    assert (done.code, "oracle takes no tools" in done.err) == (0, True), done.err
    assert (
        "Action:" in json.loads((Path("out") / "rows.jsonl").open().readline())["trajectory"]["messages"][0]["content"]
    )
    for wanted, message in (("agent_settings.calls=native", "cannot offer tools"), ("backend.tools=true", "no tools")):
        done = rlhf("eval", *given[:-1], "other", "--set", wanted)
        assert (done.code, message in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("backend", "settings", "message"),
    [
        ("openai", {"backend.base_url": "http://127.0.0.1:9/v1"}, "no server answers at http://127.0.0.1:9/v1"),
        ("anthropic", {"backend.base_url": "http://127.0.0.1:9"}, "no server answers at http://127.0.0.1:9"),
        ("openai", {"backend.model": "''"}, "has no model"),
        ("openai", {"backend.base_url": "https://api.example.org/v1", "backend.prices": "{}"}, "OPENAI_API_KEY"),
        ("anthropic", {"backend.model": "claude-unheard-of"}, "costs is not known"),
        ("anthropic", {"backend.max_cost_usd": 1e-9}, "the spend cap is reached"),
        ("anthropic", {"backend.timeout": 3}, "timeout"),
        ("anthropic", {"backend.batches": "true"}, "cannot use batches"),
    ],
)
def test_refused_before_anything_is_played(
    backend: str, settings: dict[str, Any], message: str, serve: Any, rlhf: Any
) -> None:
    given = words(backend, serve(), **settings)
    if "backend.model" in settings:
        given = [*given[:2], *given[4:]]  # --model replaces it
    done = rlhf("eval", "agentbench_mini", *given)
    assert (done.code, message in done.err) == (2, True), done.err
    assert not list(Path().rglob("rows.jsonl"))


def test_no_key_and_a_refused_one_are_told_apart(serve: Any, rlhf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    monkeypatch.setattr("rlhf_plugin_judge.stand_in.Handler.has_key", lambda self: False)
    done = rlhf("eval", "agentbench_mini", *words("anthropic", server))
    assert (done.code, "the key in ANTHROPIC_API_KEY is refused" in done.err) == (2, True), done.err
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    done = rlhf("eval", "agentbench_mini", *words("anthropic", server))
    assert (done.code, "backend 'anthropic' has no key" in done.err) == (2, True), done.err


def test_calls_that_cannot_be_read_are_told_to_the_model() -> None:
    calls = [
        {"id": "a", "name": "search", "arguments": '{"query": "x"}'},
        {"id": "a", "name": "search", "arguments": '{"query": '},
        {"id": "", "name": "search", "arguments": "[]"},
    ]
    reply = model_reply(ServiceReply("", calls=calls, paid_usd=0.5), earlier=3)
    made = reply.message["tool_calls"]
    assert [c["id"] for c in made] == ["a", "call00004", "call00005"]
    assert [c["function"]["arguments"] for c in made] == [{"query": "x"}, {}, {}]
    assert [e["id"] for e in reply.errors] == ["call00004", "call00005"]
    assert reply.cost_usd == 0.5


def test_a_request_that_does_not_fit_ends_its_task_and_is_no_fault_of_the_service(serve: Any, ctx: Any) -> None:
    from rlhf_plugin_agents.backends.base import ContextFull, ModelRequest
    from rlhf_plugin_agents.backends.paid import PaidBackend
    from rlhf_plugin_agents.backends.paid_config import OpenAIBackendConfig

    config = OpenAIBackendConfig(model="any", base_url=f"{serve(faults={'full': 1.0}).url}/v1")
    backend = PaidBackend(config.service(ctx), "openai")
    with pytest.raises(ContextFull, match="prompt is too long"):
        backend.complete(ModelRequest(({"role": "user", "content": "?"},)))
    backend.close()


@pytest.mark.slow
def test_what_a_killed_evaluation_paid_for_is_not_paid_again(ctx: Any, tmp_path: Path) -> None:
    """SIGKILL in the middle; the same command leaves out what was in flight, and only asks again when told to."""
    from scripts.faults.services import AGENTS, agent_words, counted, killed, played

    tasks = AgentBenchMini(max_per_category=1).tasks(ctx)
    with StandIn(Service(oracle(tasks), latency_s=0.05, models=("oracle",))) as server:
        given: Any = ("openai", server, tmp_path, 1.0, 1)
        assert killed(agent_words(*given, repeat=False), tmp_path, server.service, 6)
        rest = counted(played(agent_words(*given, repeat=False), tmp_path), server.service, tmp_path, 1.0)
        assert rest["missing"] > 0, "the calls that were in flight"
        assert (rest["plays"], rest["wrong"], rest["calls billed twice"]) == (3 * len(AGENTS), 0, 0)
        assert rest["billed <= ledger <= cap"]
        whole = counted(played(agent_words(*given, repeat=True), tmp_path), server.service, tmp_path, 1.0)
        assert (whole["right"], whole["missing"]) == (3 * len(AGENTS), 0)
        assert whole["calls billed twice"] <= 8, "workers"

"""The judge `openai` through the real SDK, calls of tools at both services, and what is never sent again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.rewards import JudgeRequest, ScoreStatus
from rlhf_plugin_episodes.tool_spec import tool_spec
from rlhf_plugin_judge.ledger import Ledger
from rlhf_plugin_judge.openai_config import OpenAIConfig
from rlhf_plugin_judge.prices import NANO, Price
from rlhf_plugin_judge.replies import ToolRequest
from rlhf_plugin_judge.stand_in import StandIn
from rlhf_plugin_judge.stand_in_tools import Wrote, calls_first, results_of
from rlhf_testing import check_judge, make_context

PRICES = {"any": Price(input=1, output=5)}
ADD = tool_spec("add", "Adds.", a="number", b="number")


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., OpenAIConfig]:
    """``asking(server, ...)``: settings of a judge that asks it, with short waits."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    def make(server: StandIn, **settings: Any) -> OpenAIConfig:
        quick = {"backoff_s": 0.01, "timeout_s": 20.0, "max_attempts": 30, "model": "any", "prices": PRICES}
        return OpenAIConfig(base_url=f"{server.url}/v1", **{**quick, **settings})

    return make


def echo(body: Any) -> str:
    return f"{body['messages'][-1]['content']}, seed {body['seed']}"


@pytest.mark.slow
def test_conforms(serve: Any, asking: Any) -> None:
    check_judge(asking(serve(answer=echo)))


@pytest.mark.slow
def test_every_request_is_answered_in_spite_of_faults_and_a_rerun_is_free(
    serve: Any, asking: Any, requests: Any
) -> None:
    faults = {"429": 0.1, "500": 0.1, "malformed": 0.1, "drop": 0.1, "hang": 0.05}
    server = serve(answer=echo, faults=faults, seed=1)
    judge = asking(server, timeout_s=0.4).build(ctx := make_context())
    questions = requests(40)
    replies = judge.ask(questions)
    judge.close()
    assert [r.text for r in replies] == [f"Question {i}, seed 0" for i in range(40)]
    assert min(server.service.seen[k] for k in faults) >= 1
    assert ctx.report["judge"]["retried_429"] >= 1
    assert sum(r.cost_usd for r in replies) > 0
    assert server.service.seen["billed_nano"] <= judge.ledger.total
    before = server.service.seen["arrivals"]
    assert all(r.cached and not r.cost_usd for r in asking(server).build(make_context()).ask(questions))
    assert server.service.seen["arrivals"] == before


def test_what_a_request_holds(serve: Any, asking: Any) -> None:
    server = serve()
    request = JudgeRequest("a", ({"role": "user", "content": "?"},), "You grade.", max_tokens=9, seed=3)
    asking(server, extra_body={"top_k": 1}).build(make_context()).ask([request])
    asking(server, limit_name="max_completion_tokens", send_temperature=False, send_seed=False).build(
        make_context()
    ).ask([request])
    first, second = server.service.bodies
    assert first["messages"] == [{"role": "system", "content": "You grade."}, {"role": "user", "content": "?"}]
    assert {k: first[k] for k in ("max_tokens", "temperature", "seed", "top_k")} == {
        "max_tokens": 9, "temperature": 0, "seed": 3, "top_k": 1,
    }  # fmt: skip
    assert set(second) == {"model", "messages", "max_completion_tokens"}


def test_a_server_that_does_not_say_what_it_took_took_everything(serve: Any, asking: Any) -> None:
    from openai.types.chat import ChatCompletion

    config = asking(serve())
    question = config.question_of(JudgeRequest("a", ({"role": "user", "content": "?"},)))
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
    row = {"id": "1", "object": "chat.completion", "created": 0, "model": "any", "choices": [choice]}
    reply, _ = config.build(make_context()).read(ChatCompletion.model_validate(row), question)
    assert reply.cost_usd * NANO == pytest.approx(question.most)


def test_settings_that_cannot_work_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    ctx = make_context()
    for address in ("http://localhost:8000/v1", "http://10.0.0.7/v1", "http://gpu-box/v1"):
        OpenAIConfig(model="m", base_url=address).preflight(ctx)  # of one's own: neither key nor price
    for settings, message in (
        ({"base_url": "http://localhost/v1"}, "has no model"),
        ({"model": "m", "prices": {"m": PRICES["any"]}}, "OPENAI_API_KEY is not set"),
        ({"model": "m", "base_url": "https://api.example.org/v1", "key_from": "OTHER"}, "OTHER is not set"),
    ):
        with pytest.raises(ConfigError, match=message):
            OpenAIConfig(**settings).preflight(ctx)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(ConfigError, match="what 'm' costs is not known"):
        OpenAIConfig(model="m").preflight(ctx)


def test_the_judge_of_a_command(serve: Any, command: Any, asking: Any) -> None:
    server = serve(answer=lambda body: '{"why": "as ever", "better": "tie"}')
    words = ["--set", f"base_url={server.url}/v1", "--set", "model=any", "--pairs", 2]
    code, err = command("judge", "agreement", "--judge", "openai", *words)
    assert code == 0, err
    assert server.service.seen["answers"] == 4
    code, err = command(
        "judge", "agreement", "--judge", "openai", "--set", "base_url=http://127.0.0.1:9/v1", *words[2:]
    )
    assert (code, "no server answers at http://127.0.0.1:9/v1" in err) == (2, True), err


@pytest.mark.parametrize("service", ["anthropic", "openai"])
def test_calls_and_results_are_turns_that_the_service_takes(service: str, serve: Any, config: Any, asking: Any) -> None:
    """Two calls at once, results with an error among them, and a last question that offers no tools."""

    def answer(body: Any) -> Wrote:
        if results_of(body):
            return Wrote(f"they say {results_of(body)}")
        return Wrote("Let me see.", [("add", {"a": 2, "b": 2}), ("add", {"a": "x", "b": 1})])

    server = serve(answer=answer)
    judge = (config(server) if service == "anthropic" else asking(server)).build(make_context())
    user = {"role": "user", "content": "2 + 2?"}
    first = judge.ask([ToolRequest("a", (user,), tools=(ADD,))])[0]
    assert (first.text, first.ok, len(first.calls)) == ("Let me see.", True, 2)
    assert [json.loads(c["arguments"]) for c in first.calls] == [{"a": 2, "b": 2}, {"a": "x", "b": 1}]
    assert judge.ask([ToolRequest("a", (user,), tools=(ADD,))])[0].calls == first.calls, "kept, calls included"
    made = [
        {"id": c["id"], "type": "function", "function": {"name": "add", "arguments": json.loads(c["arguments"])}}
        for c in first.calls
    ]
    results = [
        {"role": "tool", "tool_call_id": c["id"], "content": text} for c, text in zip(first.calls, ("4", "Error: no"))
    ]
    turns = (user, {"role": "assistant", "content": "Let me see.", "tool_calls": made}, *results)
    asked = (*turns, {"role": "user", "content": "Now answer."})
    for tools in ((ADD,), ()):
        reply = judge.ask([ToolRequest("a", asked, tools=tools)])[0]
        assert (reply.text, reply.detail) == ("they say ['4', 'Error: no']", "")
    body = server.service.bodies[-1]
    if service == "anthropic":
        assert body["tool_choice"] == {"type": "none"}
        assert [b.get("is_error") for b in body["messages"][-1]["content"]] == [None, True, None]
    else:
        assert "tools" not in body
    assert judge.ledger.total == server.service.seen["billed_nano"]


def test_the_stand_in_refuses_calls_without_results(serve: Any, config: Any, asking: Any) -> None:
    server = serve(answer=calls_first(1, "done"))
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {}}}
    turns = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]})
    asked = ToolRequest("a", (*turns, {"role": "user", "content": "well?"}), tools=(ADD,))
    for settings in (config(server), asking(server)):
        reply = settings.build(make_context()).ask([asked])[0]
        assert "400" in reply.detail
    assert not server.service.seen["answers"]


def test_what_may_have_been_paid_for_is_not_repeated(serve: Any, asking: Any, requests: Any) -> None:
    """A killed process's question, and one that was cut off: neither is sent again, unless that is wanted."""
    server = serve(answer=echo)
    settings = asking(server, repeat_after_kill=False)
    question = settings.question_of(requests(1)[0])
    killed = Ledger(settings.ledger_file(None), 5.0)
    assert killed.reserve(question.most, question.digest[:16])
    first, second = settings.build(make_context()).ask(requests(2))
    assert (first.status, second.status) == (ScoreStatus.MISSING, ScoreStatus.OK)
    assert "may have been billed" in first.detail
    assert asking(server).build(make_context()).ask(requests(1))[0].ok
    assert settings.build(make_context()).ask(requests(1))[0].cached
    hanging = serve(answer=echo, faults={"hang": 1.0}, hang_s=0.2)
    strict = asking(hanging, timeout_s=0.1, repeat_after_timeout=False)
    for _ in range(2):
        reply = strict.build(make_context()).ask([JudgeRequest("z", ({"role": "user", "content": "z"},))])[0]
        assert (reply.status, "cut off" in reply.detail) == (ScoreStatus.MISSING, True)
    assert hanging.service.seen["arrivals"] == 1


def test_a_full_quota_is_not_waited_for() -> None:
    import httpx2
    import openai

    from rlhf_plugin_judge.retries import worth_retrying

    response = httpx2.Response(429, request=httpx2.Request("POST", "http://x"))
    quota, rate = (openai.RateLimitError("?", response=response, body={"code": c}) for c in ("insufficient_quota", "x"))
    assert (worth_retrying(quota), worth_retrying(rate)) == (False, True)


@pytest.mark.parametrize("field", ["model", "n", "max_completion_tokens"])
def test_further_fields_cannot_exceed_the_cap(field: str) -> None:
    with pytest.raises(ConfigError, match=f"extra_body cannot set '{field}'"):
        OpenAIConfig(extra_body={field: 2}).preflight(make_context())


def test_an_address_holds_no_password() -> None:
    with pytest.raises(ConfigError, match="holds a user or a password") as refused:
        OpenAIConfig(base_url="http://me:secret@host/v1").preflight(make_context())
    assert "secret" not in str(refused.value)

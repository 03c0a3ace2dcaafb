"""The real SDK against a service on this machine: faults, deadlines, the cache, and what must never happen."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from pathlib import Path

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import read_jsonl
from rlhf_core.rewards import JudgeRequest, ScoreStatus
from rlhf_plugin_judge.config import AnthropicConfig
from rlhf_plugin_judge.ledger import Ledger
from rlhf_plugin_judge.prices import NANO, Price
from rlhf_plugin_judge.question import question_of
from rlhf_plugin_judge.stand_in import by_question
from rlhf_testing import check_judge, make_context


@pytest.mark.slow
def test_conforms(serve, config):
    check_judge(config(serve()))


@pytest.mark.slow
def test_every_request_is_answered_in_spite_of_faults(serve, config, requests):
    server = serve(faults={"429": 0.1, "500": 0.05, "529": 0.05, "malformed": 0.05, "drop": 0.05, "hang": 0.02})
    judge = config(server, timeout_s=1.0).build(ctx := make_context())
    questions = requests(80)
    replies = judge.ask(questions)
    judge.close()
    assert [r.text for r in replies] == [by_question({"messages": a.messages}) for a in questions]
    counts = server.service.seen
    assert min(counts[k] for k in ("429", "500", "529", "malformed", "drop", "hang")) >= 1
    assert 1 <= ctx.report["judge"]["retried_429"] <= counts["429"]  # one that comes too late is a timeout
    assert counts["billed_nano"] <= judge.ledger.total  # also what was billed and never arrived


def test_a_rerun_costs_nothing_and_survives_a_damaged_file(serve, config, requests, tmp_path):
    server = serve()
    first = config(server).build(make_context()).ask(requests(5))
    before, spent = server.service.seen["arrivals"], server.service.seen["billed_nano"]
    next((tmp_path / "cache" / "judges" / "answers").glob("*/*.json")).write_text('{"text": "half')
    again = config(server).build(make_context()).ask(requests(5))
    assert [r.text for r in again] == [r.text for r in first]
    assert sorted(r.cached for r in again) == [False, True, True, True, True]
    assert sum(r.cost_usd for r in first) * NANO == pytest.approx(spent)
    assert server.service.seen["arrivals"] == before + 1


def test_equal_questions_are_sent_once_and_what_decides_an_answer_is_in_its_hash(serve, config):
    server = serve()
    turn = ({"role": "user", "content": "Same"},)
    kinds = [
        JudgeRequest("a", turn),
        JudgeRequest("b", turn),
        JudgeRequest("c", turn, seed=1),
        JudgeRequest("d", turn, system="Other"),
        JudgeRequest("e", turn, max_tokens=9),
        JudgeRequest("f", turn, temperature=0.5),
    ]
    replies = config(server).build(make_context()).ask(kinds)
    assert server.service.seen["arrivals"] == 5
    assert [r.cached for r in replies] == [False, True, False, False, False, False]
    other_model = config(server, model="claude-sonnet-4-6").build(make_context())
    assert not other_model.ask(kinds[:1])[0].cached


def test_the_cap_holds_with_requests_in_flight(serve, config, requests):
    server = serve(latency_s=0.02, faults={"drop": 0.1})  # what is dropped was billed
    judge = config(server, max_cost_usd=0.003, max_attempts=3).build(make_context())
    replies = judge.ask(requests(60))
    refused = [r for r in replies if r.status is ScoreStatus.MISSING]
    assert refused
    assert 1 < server.service.most_open <= 16
    assert any(r.ok for r in replies)
    assert "cap" in refused[0].detail
    assert server.service.seen["billed_nano"] <= judge.ledger.total <= 0.003 * NANO
    more = config(server, max_cost_usd=1.0).build(make_context())  # the same ledger: what is there is not paid again
    assert all(r.ok for r in more.ask(requests(60)))


def test_requests_wait_for_room_that_others_in_flight_give_back(serve, config, requests):
    server = serve(latency_s=0.01)
    probe = config(server).build(make_context())
    probe.ask(requests(1))
    real = probe.ledger.total
    worst = question_of(requests(1)[0], config(server)).most
    assert worst > 2 * real  # else there is nothing to give back
    cap = (real * 21 + worst) / NANO
    judge = config(server, max_cost_usd=cap).build(make_context())
    assert all(r.ok for r in judge.ask(requests(20)))


def test_a_deadline_is_a_status(serve, config, requests):
    server = serve(faults={"hang": 1.0})
    reply = config(server, timeout_s=0.1, deadline_s=0.35).build(make_context()).ask(requests(1))[0]
    assert (reply.status, reply.text) == (ScoreStatus.TIMEOUT, None)
    assert "0.35 s" in reply.detail


def test_retry_after_is_kept_to(serve, config, requests, monkeypatch):
    server, waited, sleep = serve(faults={"429": 1.0}, retry_after=30), [], asyncio.sleep
    judge = config(server, max_attempts=3, backoff_s=0).build(make_context())

    def skip(seconds):
        waited.append(seconds)
        judge.not_before = 0
        return sleep(0)

    monkeypatch.setattr("rlhf_plugin_judge.paid.asyncio.sleep", skip)
    reply = judge.ask(requests(1))[0]
    assert reply.status is ScoreStatus.ERROR
    assert "429" in reply.detail
    assert server.service.seen["arrivals"] == 3
    assert [20 < seconds <= 30 for seconds in waited] == [True, True]


def test_a_prompt_whose_price_is_not_known_is_not_sent(serve, config):
    server = serve()
    judge = config(server, prices={"claude-haiku-4-5": Price(input=1, output=5, longest=1000)}).build(make_context())
    reply = judge.ask([JudgeRequest("x", ({"role": "user", "content": "word " * 200},))])[0]
    assert reply.status is ScoreStatus.ERROR
    assert "more than 1000 tokens" in reply.detail
    assert not server.service.bodies


def test_what_is_refused_for_good_is_asked_once(serve, config):
    server = serve()
    reply = config(server).build(make_context()).ask([JudgeRequest("x", ({"role": "user", "content": ""},))])[0]
    assert reply.status is ScoreStatus.ERROR
    assert "non-empty" in reply.detail
    assert len(server.service.bodies) == 1


def test_the_shared_system_text_is_marked_for_the_prompt_cache(serve, config, requests):
    server = serve()
    judge = config(server, concurrency=1).build(make_context())
    judge.ask(requests(3))
    assert server.service.bodies[0]["system"][0]["cache_control"] == {"type": "ephemeral"}
    assert server.service.bodies[0]["temperature"] == 0.0
    assert server.service.seen["billed_nano"] == judge.ledger.total
    plain = config(server, prompt_caching=False, send_temperature=False).build(make_context())
    plain.ask([JudgeRequest("x", ({"role": "user", "content": "new"},), "You grade.")])
    newer = config(server, model="claude-haiku-5-5").build(make_context())
    newer.ask([JudgeRequest("x", ({"role": "user", "content": "newer"},))])
    assert "temperature" not in server.service.bodies.pop()
    assert "cache_control" not in server.service.bodies[-1]["system"][0]
    assert "temperature" not in server.service.bodies[-1]


def test_batches_are_cheaper_and_a_killed_process_s_batch_is_fetched(serve, config, requests):
    server = serve(polls=3)
    questions = requests(7)
    judge = config(server, batches=True, batch_size=4, batch_deadline_s=0.001).build(make_context())
    assert {r.status for r in judge.ask(questions)} == {ScoreStatus.TIMEOUT}  # sent, and not waited for
    later = config(server, batches=True, batch_size=4).build(make_context())
    replies = later.ask(questions)
    assert [r.text for r in replies] == [by_question({"messages": a.messages}) for a in questions]
    assert server.service.seen["batches"] == 2  # none was sent again
    assert server.service.seen["billed_nano"] == later.ledger.total
    single = config(server, cache=False, prompt_caching=False).build(make_context()).ask(questions[:1])[0]
    assert replies[0].cost_usd < single.cost_usd


def test_a_batch_that_is_refused_for_now_is_sent_again(serve, config, requests):
    server = serve(faults={"529": 0.5})
    judge = config(server, batches=True, batch_size=1).build(ctx := make_context())
    replies = judge.ask(requests(7))
    assert server.service.seen["batches"] == 7
    assert ctx.report["judge"]["retried_529"] >= 1
    assert any(r.ok for r in replies)
    assert all(r.ok or "in a batch" in r.detail for r in replies)  # that question's own fault, not the batch's
    assert judge.ledger.total == server.service.seen["billed_nano"]


@pytest.mark.parametrize("fault", ["drop", "malformed"])
def test_a_batch_that_may_have_been_taken_is_not_sent_again_and_counts_in_full(fault, serve, config, requests):
    server = serve(faults={fault: 1.0})
    settings = config(server, batches=True)
    judge = settings.build(make_context())
    replies = judge.ask(requests(3))
    assert {r.status for r in replies} == {ScoreStatus.ERROR}
    assert server.service.seen["batches"] == 1
    assert judge.ledger.total == 3 * question_of(requests(1)[0], settings).most


def test_a_batch_takes_as_many_questions_as_the_cap_has_room_for(serve, config, requests):
    server = serve()
    most = question_of(requests(1)[0], config(server, batches=True)).most
    replies = config(server, batches=True, max_cost_usd=6.5 * most / NANO).build(make_context()).ask(requests(9))
    assert [r.status for r in replies] == [ScoreStatus.OK] * 6 + [ScoreStatus.MISSING] * 3
    assert "cap" in replies[-1].detail


def test_a_batch_of_yesterday_is_fetched_and_paid_from_its_own_ledger(serve, config, requests, tmp_path):
    server = serve()
    judge = config(server, batches=True, batch_deadline_s=0.001).build(make_context())
    assert {r.status for r in judge.ask(requests(3))} == {ScoreStatus.TIMEOUT}
    yesterday = judge.ledger.path.with_name("ledger-2026-01-01.jsonl")
    judge.ledger.path.rename(yesterday)  # midnight
    today = config(server, batches=True).build(make_context())
    assert all(r.ok for r in today.ask(requests(3)))
    assert server.service.seen["batches"] == 1
    assert today.ledger.total == 0
    assert Ledger(yesterday, 1.0).total == server.service.seen["billed_nano"] > 0
    assert not Ledger(yesterday, 1.0).open_batches()
    os.utime(yesterday, (0, 0))
    assert not config(server, batches=True).build(make_context()).earlier
    assert not config(server, batches=True).build(make_context(run_dir=tmp_path)).earlier


def test_a_full_disk_ends_everything_that_is_asked(serve, config, requests, monkeypatch):
    server = serve(latency_s=0.03)
    judge = config(server, concurrency=4).build(make_context())
    reserve, calls = judge.ledger.reserve, []

    def full_once(nano, purpose):
        calls.append(purpose)
        if len(calls) == 9:
            raise OSError(28, "No space left on device")
        return reserve(nano, purpose)

    monkeypatch.setattr(judge.ledger, "reserve", full_once)
    with pytest.raises(OSError, match="No space left on device"):
        judge.ask(requests(40))
    time.sleep(0.25)
    assert len(calls) <= 9 + 4  # each of the four places may be taken once more before the others are cancelled
    assert server.service.seen["billed_nano"] <= judge.ledger.total


def test_two_judges_of_a_run_report_apart_and_what_their_ledger_holds(serve, config, requests, tmp_path):
    server, ctx = serve(), make_context(run_dir=tmp_path)
    judges = [
        config(server, model=name, prompt_caching=False).build(ctx)
        for name in ("claude-haiku-4-5", "claude-sonnet-4-6")
    ]
    for judge, count in zip(judges, (3, 2)):
        judge.ask(requests(count))
    first, second = ctx.report["judge"], ctx.report["judge_2"]
    assert (first["requests"], second["requests"]) == (3, 2)
    assert (first["model"], second["model"]) == ("claude-haiku-4-5", "claude-sonnet-4-6")
    assert first["ledger_usd"] == pytest.approx(first["cost_usd"])
    assert second["ledger_usd"] == pytest.approx(first["cost_usd"] + second["cost_usd"])


def test_the_key_reaches_neither_disk_nor_log_nor_errors(serve, config, requests, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    secret = os.environ["ANTHROPIC_API_KEY"]
    server = serve(faults={"500": 0.3})
    settings = config(server)
    judge = settings.build(make_context())
    replies = judge.ask(requests(10))
    judge.close()
    assert server.service.headers[0]["authorization"].endswith(secret)
    texts = [f.read_text(errors="replace") for f in tmp_path.rglob("*") if f.is_file()]
    assert len(texts) > 10
    shown = [caplog.text, repr(replies), repr(settings), settings.model_dump_json(), judge.say(ValueError(secret))]
    assert not [t for t in [*shown, *texts] if secret in t]


def test_settings_that_cannot_work_are_refused(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="what 'unheard-of' costs is not known"):
        AnthropicConfig(model="unheard-of").preflight(make_context())
    AnthropicConfig(model="mine", prices={"mine": Price(input=1, output=2)}).preflight(make_context())
    (tmp_path / "l.jsonl").write_text("no json\n")
    with pytest.raises(ConfigError, match="line 1"):
        AnthropicConfig(ledger=str(tmp_path / "l.jsonl")).build(make_context())
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY is not set"):
        AnthropicConfig().preflight(make_context())


def test_a_missing_key_ends_the_command_with_code_2(command, monkeypatch, tmp_path):
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "2 + 2?", "completion": "4"}) + "\n")
    code, err = command("reward", "score", "--reward", "judge", "--input", rows)
    assert code == 2
    assert "ANTHROPIC_API_KEY" in err


def test_a_judge_of_a_run_keeps_its_ledger_there(serve, config, requests, tmp_path):
    judge = config(serve()).build(make_context(run_dir=tmp_path))
    judge.ask(requests(2))
    rows = list(read_jsonl(tmp_path / "judge_ledger.jsonl"))
    assert [r["op"] for r in rows] == ["reserve", "reserve", "settle", "settle"]
    assert {r["pid"] for r in rows} == {os.getpid()}
    assert rows[-1]["output"] > 0
    assert Path(judge.ledger.path).parent == tmp_path


def test_who_waits_is_released_when_the_service_closes() -> None:
    import asyncio
    import threading
    from concurrent.futures import CancelledError

    from rlhf_plugin_judge.background import Background

    background, started, ended = Background(), threading.Event(), list[str]()

    async def hang() -> None:
        started.set()
        await asyncio.sleep(60)

    def wait() -> None:
        try:
            background.run(hang())
        except CancelledError:
            ended.append("released")

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert started.wait(5)
    background.close()
    waiting.join(2)
    assert ended == ["released"]

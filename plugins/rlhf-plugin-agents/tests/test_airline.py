"""tau-bench airline: functions, files in both forms, recordings, and a model as the user."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError
from rlhf_plugin_agents.backends.base import BackendFault
from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_plugin_agents.harness import Job, evaluate, play_one
from rlhf_plugin_agents.suites.airline import AirlineStore
from rlhf_plugin_agents.suites.config import TauBench
from rlhf_plugin_agents.suites.environment import suite_of
from rlhf_plugin_agents.suites.tau_files import database, open_store, read
from rlhf_plugin_agents.suites.tau_replay import replayed
from rlhf_plugin_agents.suites.tau_user import GREETING, ModelUserConfig
from rlhf_plugin_judge.stand_in import Service, StandIn

DAY = "2024-05-20"
ADA = {"first_name": "Ada", "last_name": "Varde", "dob": "1990-01-01"}


@pytest.fixture
def store(airline: Path) -> AirlineStore:
    made = open_store(airline, "airline")
    assert isinstance(made, AirlineStore)
    return made


def booking(**other: Any) -> dict[str, Any]:
    return {
        "user_id": "ada_varde_1", "origin": "SFO", "destination": "JFK", "flight_type": "one_way", "cabin": "economy",
        "flights": [{"flight_number": "HAT001", "date": DAY}], "passengers": [ADA], "total_baggages": 2,
        "nonfree_baggages": 1, "insurance": "yes",
        "payment_methods": [{"payment_id": "certificate_1", "amount": 30}, {"payment_id": "gift_card_1", "amount": 50},
                            {"payment_id": "credit_card_1", "amount": 100}], **other,
    }  # fmt: skip


def test_a_booking_is_paid_and_its_price_checked(store: AirlineStore) -> None:
    before = store.digest
    made = json.loads(store.call("book_reservation", booking()))
    assert (made["reservation_id"], made["flights"][0]["price"], made["flights"][0]["origin"]) == ("HATHAT", 100, "SFO")
    user = json.loads(store.call("get_user_details", {"user_id": "ada_varde_1"}))
    assert user["payment_methods"]["gift_card_1"]["amount"] == 10
    assert "certificate_1" not in user["payment_methods"]
    assert user["reservations"] == ["R1", "HATHAT"]
    assert store.digest != before
    wrong = booking(payment_methods=[{"payment_id": "credit_card_1", "amount": 9}])
    told = "Error: payment amount does not add up, total price is 180, but paid 9"
    assert store.call("book_reservation", wrong) == told


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("get_reservation_details", {"reservation_id": "R9"}, "Error: user not found"),
        ("cancel_reservation", {"reservation_id": "R9"}, "Error: reservation not found"),
        ("book_reservation", booking(flights=[{"flight_number": "HAT9", "date": DAY}]), "Error: flight HAT9 not found"),
        ("book_reservation", booking(passengers=[ADA] * 3), "Error: not enough seats on flight HAT001"),
        ("book_reservation", booking(payment_methods=[{"payment_id": "x", "amount": 1}]),
         "Error: payment method x not found"),
        ("update_reservation_baggages",
         {"reservation_id": "R1", "total_baggages": 9, "nonfree_baggages": 2, "payment_id": "gift_card_1"},
         "Error: gift card balance is not enough"),
        ("update_reservation_passengers", {"reservation_id": "R1", "passengers": []},
         "Error: number of passengers does not match"),
        ("send_certificate", {"user_id": "ada_varde_1"},
         "Error: SendCertificate.invoke() missing 1 required positional argument: 'amount'"),
        ("calculate", {}, "Error: Calculate.invoke() missing 1 required positional argument: 'expression'"),
        ("no_such", {}, "Unknown action no_such"),
    ],
)  # fmt: skip
def test_functions_refuse_as_published_and_change_nothing(
    store: AirlineStore, name: str, arguments: Any, told: str
) -> None:
    before = store.digest
    assert store.call(name, arguments) == told
    assert store.digest == before


def test_changes_of_a_reservation(store: AirlineStore) -> None:
    new = {"reservation_id": "R1", "cabin": "economy", "payment_id": "gift_card_1",
           "flights": [{"flight_number": "HAT002", "date": DAY}, {"flight_number": "HAT003", "date": DAY}]}  # fmt: skip
    made = json.loads(store.call("update_reservation_flights", new))
    assert [f["price"] for f in made["flights"]] == [40, 50]
    assert len(made["payment_history"]) == 1  # 90 before and after
    kept = {**new, "flights": [{"flight_number": "HAT002", "date": DAY}]}
    made = json.loads(store.call("update_reservation_flights", kept))
    assert made["payment_history"][-1] == {"payment_id": "gift_card_1", "amount": -50}
    made = json.loads(store.call("cancel_reservation", {"reservation_id": "R1"}))
    assert (made["status"], sum(p["amount"] for p in made["payment_history"])) == ("cancelled", 0)
    told = [store.call("send_certificate", {"user_id": "ada_varde_1", "amount": 50}) for _ in range(4)]
    assert told[0] == "Certificate certificate_3221322 added to user ada_varde_1 with amount 50."
    assert told[3] == "None"


def test_searches(store: AirlineStore) -> None:
    asked = {"origin": "SFO", "destination": "JFK", "date": DAY}
    (direct,) = json.loads(store.call("search_direct_flight", asked))
    assert (direct["flight_number"], direct["prices"]["economy"], "dates" in direct) == ("HAT001", 100, False)
    ((first, second),) = json.loads(store.call("search_onestop_flight", asked))
    assert (first["flight_number"], second["flight_number"], second["date"]) == ("HAT002", "HAT003", DAY)
    assert store.call("search_onestop_flight", {**asked, "date": "2024-05-21"}) == "[]"


def test_a_checkout_and_json_files_are_the_same_tasks(airline: Path, tmp_path: Path, ctx: Any) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("db_users.json", "db_flights.json", "db_reservations.json", "tools.json", "tasks_test.json"):
        (folder / f"airline_{name}").write_text(json.dumps(read(airline, f"airline_{name}")))
    (folder / "airline_wiki.md").write_text(read(airline, "airline_wiki.md"))
    settings = [
        Job(suite, suite.agent_config(), ScriptedConfig()).settings(suite.tasks(ctx))["tasks"]
        for suite in (TauBench(path=str(p)) for p in (airline, tmp_path / "tau-bench", folder))
    ]
    assert settings[0] == settings[1] == settings[2]
    assert settings[0]["count"] == 2


def test_the_oracle_gets_both_tasks_and_who_is_always_wrong_none(airline: Path, ctx: Any) -> None:
    suite = TauBench(path=str(airline))
    tasks = suite.tasks(ctx)
    for script, wanted in (("oracle", True), ("wrong", False)):
        backend = ScriptedConfig(script=script).make(tasks, ctx)
        rows = [play_one(suite.agent_config("react"), backend, t, 0, 0) for t in tasks]
        assert [r["right"] for r in rows] == [wanted, wanted]
        assert {r["category"] for r in rows} == {"airline"}
    oracle = ScriptedConfig().make(tasks, ctx)
    assert play_one(suite.agent_config("react"), oracle, tasks[1], 0, 0)["requests"] == 1  # a transfer ends it


def recorded(airline: Path, **changes: str) -> dict[str, Any]:
    """A conversation about the first task as tau-bench publishes them; ``changes`` are other results."""
    store = AirlineStore(database(airline, "airline"))
    messages: list[dict[str, Any]] = [{"role": "system", "content": "policy"}, {"role": "user", "content": "Hello"}]
    for name, arguments in (
        ("get_user_details", {"user_id": "ada_varde_1"}),
        ("cancel_reservation", {"reservation_id": "R1"}),
    ):
        function = {"name": name, "arguments": json.dumps(arguments)}
        messages.append({"role": "assistant", "content": None, "tool_calls": [{"id": name, "function": function}]})
        result = changes.get(name) or store.call(name, arguments)
        messages.append({"role": "tool", "tool_call_id": name, "name": name, "content": result})
    messages.append({"role": "assistant", "content": "You get 90 dollars back."})
    messages.append({"role": "user", "content": "###STOP###"})
    then = {"actions": read(airline, "airline_tasks_test.json")[0]["actions"], "outputs": ["80"]}
    return {"task_id": 0, "reward": 1.0, "info": {"task": then}, "traj": messages, "trial": 0}


def test_every_differing_result_of_a_recording_is_named(airline: Path, rlhf: Any) -> None:
    rows = [recorded(airline), {**recorded(airline, get_user_details="{}", cancel_reservation="no"), "trial": 1}]
    Path("published.json").write_text(json.dumps(rows))
    done = rlhf("eval", "tau_bench", "--data", airline, "--replay", "published.json")
    assert done.code == 0, done.err
    assert "2 of 2 have the published reward; 2 results differ" in done.out
    assert "test/0, trial 1, call 1 (get_user_details): they differ from character 2 on: '{}' then" in done.out
    assert "test/0, trial 1, call 2 (cancel_reservation): they differ from character 1 on: 'no' then" in done.out
    assert "2 were recorded with other gold actions or outputs" in done.out


def test_a_recording_that_was_cut_off_has_no_reward(airline: Path, tmp_path: Path) -> None:
    row = recorded(airline)
    row["info"]["reward_info"] = None
    path = tmp_path / "cut.json"
    path.write_text(json.dumps([row]))
    (found,) = replayed(path, airline, "test")
    assert (found["value"], found["published"]) == (0.0, 1.0)
    assert "did not end" in found["detail"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no trajectory"),
        ([{"task_id": "0", "reward": 1, "traj": []}], "there is no task 0"),
        ([{"task_id": 0, "reward": None, "traj": []}], "has not the published form"),
        ([{"task_id": 0, "reward": 1, "traj": [{"content": "x"}]}], "has not the published form"),
        (
            [{"task_id": 0, "reward": 1, "traj": [{"role": "assistant", "tool_calls": [
                {"id": "a", "function": {"name": "get_order_details", "arguments": "{}"}}]}]}],
            "'get_order_details' is a function of retail, not of airline",
        ),
    ],
)  # fmt: skip
def test_a_recording_of_another_form_is_refused(rows: Any, message: str, airline: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(rows))
    with pytest.raises(DatasetError, match=message):
        replayed(path, airline, "test")


def test_a_domain_without_files_or_a_split_is_refused(airline: Path, tmp_path: Path, ctx: Any) -> None:
    with pytest.raises(DatasetError, match=r"no 'airline_tools\.json'"):
        TauBench(path=str(tmp_path / "nothing"), domain="airline").tasks(ctx)
    with pytest.raises(DatasetError, match="tasks_train"):
        TauBench(path=str(airline), split="train").tasks(ctx)


def answer(body: Any) -> str:
    """The user when the conversation begins with its instruction, else the agent."""
    first = str(body["messages"][0]["content"])
    if not first.startswith("You are a user interacting with an agent."):
        return "Shall I cancel it? You get 90 back."
    said = [m["content"] for m in body["messages"] if m["role"] == "user"]
    assert "Cancel your flight" in first or "want a person" in first
    return "I want to cancel." if said == [GREETING] else "Yes." if len(said) == 2 else "###STOP###"


@pytest.mark.slow
def test_a_model_plays_the_user(airline: Path, rlhf: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    with StandIn(Service(answer=answer, models=("m",))) as server:
        price = "{m: {input: 1, output: 5}}"
        settings = {"base_url": f"{server.url}/v1", "prices": price}
        words = [
            w for k, v in settings.items() for w in ("--set", f"backend.{k}={v}", "--set", f"user.settings.{k}={v}")
        ]
        done = rlhf("eval", "tau_bench", "--data", airline, "--backend", "openai", "--model", "m", "--out", "out",
                    "--set", "user.backend=openai", "--set", "user.model=m", *words)  # fmt: skip
        assert done.code == 0, done.err
    row, _ = sorted(
        (json.loads(line) for line in Path("out/rows.jsonl").read_text().splitlines()), key=lambda r: r["task"]
    )
    spoken = [m["content"] for m in row["trajectory"]["messages"] if m["role"] == "user"]
    assert spoken == ["I want to cancel.", "Yes."]
    assert (row["stop_reason"], row["user"]["requests"], row["requests"]) == ("done", 3, 2)
    assert row["cost_usd"] > row["user"]["cost_usd"] > 0


def test_a_user_that_fails_leaves_no_verdict(airline: Path, ctx: Any) -> None:
    suite = TauBench(path=str(airline))
    tasks = suite.tasks(ctx)

    class Silent:
        def first(self) -> str:
            raise BackendFault("the cap is reached")

        def __call__(self, text: str) -> str | None:
            raise BackendFault("the cap is reached")

    backend = ScriptedConfig().make(tasks, ctx)
    for first in (Silent().first, lambda: "Hello"):
        task = replace(
            tasks[0], open=lambda seed, first=first: replace(tasks[0].open(seed), respond=Silent(), first=first)
        )
        row = play_one(suite.agent_config("react"), backend, task, 0, 0)
        assert (row["value"], row["stop_reason"], row["detail"]) == (None, "backend_error", "the cap is reached")


def test_a_cap_of_the_users_service_does_not_part_evaluations(airline: Path) -> None:
    def facts(**settings: Any) -> Any:
        user = {"backend": "openai", "model": "m", "settings": settings}
        return TauBench.model_validate({"path": str(airline), "user": user}).facts()

    assert facts(max_cost_usd=1) == facts(max_cost_usd=2)
    assert facts(max_cost_usd=1) != facts(base_url="http://localhost:1/v1")


def test_an_interrupt_reaches_the_users_service(
    airline: Path, ctx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its retries would otherwise hold Ctrl-C for as long as their deadline."""
    waits, told = threading.Event(), threading.Event()

    class Slow:
        def complete(self, request: Any) -> Any:
            waits.set()
            assert told.wait(20)
            raise BackendFault("interrupted")

        def interrupt(self) -> None:
            told.set()

        def close(self) -> None:
            return

    suite = TauBench.model_validate({"path": str(airline), "user": {"backend": "openai", "model": "m"}})
    monkeypatch.setattr("rlhf_plugin_agents.backends.paid_config.OpenAIBackendConfig.make", lambda *_: Slow())

    def completed(futures: Any) -> Any:
        assert waits.wait(20)
        raise KeyboardInterrupt

    monkeypatch.setattr("rlhf_plugin_agents.harness.as_completed", completed)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Job(suite, suite.agent_config("react"), ScriptedConfig()), ctx, tmp_path / "out")
    assert told.is_set()
    users = suite._users
    suite.all_tasks(ctx)  # as for the next agent of a command
    assert users is suite._users


def test_users_that_cannot_be_are_refused(airline: Path, ctx: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be the user"):
        ModelUserConfig(backend="scripted").backend_config()
    with pytest.raises(ConfigError, match="with a model as its user"):
        suite_of("tau_bench", {"path": str(airline), "user": {"backend": "native", "model": "m"}}, ctx)

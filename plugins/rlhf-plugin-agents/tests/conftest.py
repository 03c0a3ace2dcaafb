"""What the tests of the agents share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli import context_of, open_registry
from rlhf_plugin_agents.suites.airline import FUNCTIONS as AIRLINE_TOOLS


@pytest.fixture(scope="session")
def ctx() -> Any:
    return context_of(open_registry())


FLIGHT = {"scheduled_departure_time_est": "08:00:00", "scheduled_arrival_time_est": "10:00:00"}


def _day(price: int, seats: int, status: str = "available") -> dict[str, Any]:
    fares = {"basic_economy": price - 20, "economy": price, "business": 3 * price}
    return {"status": status, "available_seats": dict.fromkeys(fares, seats), "prices": fares}


@pytest.fixture
def airline(tmp_path: Path) -> Path:
    """An invented airline in the form of tau-bench's published folder, two tasks long."""
    flights = {
        "HAT001": {**FLIGHT, "origin": "SFO", "destination": "JFK", "dates": {"2024-05-20": _day(100, 2)}},
        "HAT002": {**FLIGHT, "origin": "SFO", "destination": "DEN", "dates": {"2024-05-20": _day(40, 9)}},
        "HAT003": {
            "origin": "DEN",
            "destination": "JFK",
            "scheduled_departure_time_est": "11:00:00",
            "scheduled_arrival_time_est": "14:00:00",
            "dates": {"2024-05-20": _day(50, 9), "2024-05-21": _day(50, 9, "delayed")},
        },
    }
    flights = {number: {"flight_number": number, **flight} for number, flight in flights.items()}
    methods = {
        "credit_card_1": {"source": "credit_card", "brand": "visa", "id": "credit_card_1"},
        "gift_card_1": {"source": "gift_card", "amount": 60, "id": "gift_card_1"},
        "certificate_1": {"source": "certificate", "amount": 30, "id": "certificate_1"},
    }
    user = {"name": {"first_name": "Ada", "last_name": "Varde"}, "payment_methods": methods, "reservations": ["R1"]}
    reservation = {
        "reservation_id": "R1",
        "user_id": "ada_varde_1",
        "cabin": "economy",
        "flights": [
            {"origin": "SFO", "destination": "JFK", "flight_number": "HAT001", "date": "2024-05-20", "price": 90}
        ],
        "passengers": [{"first_name": "Ada", "last_name": "Varde", "dob": "1990-01-01"}],
        "payment_history": [{"payment_id": "credit_card_1", "amount": 90}],
        "total_baggages": 1,
        "nonfree_baggages": 0,
    }
    root = tmp_path / "tau-bench" / "tau_bench" / "envs" / "airline"
    (root / "data").mkdir(parents=True)
    (root / "tools").mkdir()
    tables = {"flights": flights, "users": {"ada_varde_1": user}, "reservations": {"R1": reservation}}
    for name, rows in tables.items():
        (root / "data" / f"{name}.json").write_text(json.dumps(rows))
    (root / "wiki.md").write_text("Be kind.")
    for name in AIRLINE_TOOLS:
        title = name.title().replace("_", "")
        spec = {"type": "function", "function": {"name": name, "description": name,
                                                 "parameters": {"type": "object", "properties": {}}}}  # fmt: skip
        text = f"class {title}(Tool):\n    @staticmethod\n    def get_info():\n        return {spec!r}\n"
        (root / "tools" / f"{name}.py").write_text(text)
    offered = ", ".join(name.title().replace("_", "") for name in sorted(AIRLINE_TOOLS))
    (root / "tools" / "__init__.py").write_text(f"from .x import Y\n\nALL_TOOLS = [{offered}]\n")
    (root / "tasks_test.py").write_text(AIRLINE_TASKS)
    return root


AIRLINE_TASKS = """from tau_bench.types import Action, Task

TASKS = [
    Task(
        annotator="0",
        user_id="ada_varde_1",
        instruction="You are Ada. Cancel your flight.",
        actions=[Action(name="cancel_reservation", kwargs={"reservation_id": "R1"})],
        outputs=["90"],
    ),
    Task(
        annotator="0",
        user_id="ada_varde_1",
        instruction="You are Ada. You want a person.",
        actions=[Action(name="transfer_to_human_agents", kwargs={"summary": "wants a person"})],
    ),
]
"""

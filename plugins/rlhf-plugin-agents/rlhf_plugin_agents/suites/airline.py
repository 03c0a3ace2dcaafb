"""The functions of tau-bench's airline domain (Yao et al. 2024, arXiv:2406.12045), with the texts and side effects of
the published ones (sierra-research/tau-bench 59a200c, MIT), odd ones too, character by character."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from importlib.resources import files
from typing import Any, ClassVar

from rlhf_plugin_agents.suites.tau_store import Refused, Store

NOW = "2024-05-15T15:00:00"
NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
BAG, INSURANCE = 50, 30
"""Dollars: of a bag that is not free, and of a passenger's insurance."""
AIRPORTS: Mapping[str, str] = json.loads((files("rlhf_plugin_agents.suites") / "airports.json").read_text())
Flight = Mapping[str, Any]


class AirlineStore(Store):
    domain: ClassVar[str] = "airline"
    tables: ClassVar[tuple[str, ...]] = ("flights", "reservations", "users")

    def get_user_details(self, user_id: str) -> Any:
        return self._one("users", user_id)

    def get_reservation_details(self, reservation_id: str) -> Any:
        if reservation_id not in self.data["reservations"]:
            raise Refused("user not found")
        return self._one("reservations", reservation_id)

    def list_all_airports(self) -> Any:
        return AIRPORTS

    def search_direct_flight(self, origin: str, destination: str, date: str) -> Any:
        between = [f for f in self.data["flights"].values() if (f["origin"], f["destination"]) == (origin, destination)]
        return [_on(f, date) for f in between if _available(f, date)]

    def search_onestop_flight(self, origin: str, destination: str, date: str) -> Any:
        """Pairs of flights with one stop, the second on the day on which the first arrives."""
        trips: list[list[dict[str, Any]]] = []
        for first in self.data["flights"].values():
            if first["origin"] != origin:
                continue
            for second in self.data["flights"].values():
                if second["destination"] != destination or first["destination"] != second["origin"]:
                    continue
                arrives = first["scheduled_arrival_time_est"]
                then = f"2024-05-{int(date[-2:]) + 1}" if "+1" in arrives else date
                if arrives > second["scheduled_departure_time_est"]:
                    continue
                if _available(first, date) and _available(second, then):
                    # The published function shows the second flight as of the first one's day.
                    trips.append([{**_on(first, date), "date": date}, {**_on(second, date), "date": then}])
        return trips

    def book_reservation(
        self,
        user_id: str,
        origin: str,
        destination: str,
        flight_type: str,
        cabin: str,
        flights: Sequence[Flight],
        passengers: Sequence[Mapping[str, Any]],
        payment_methods: Sequence[Mapping[str, Any]],
        total_baggages: int,
        nonfree_baggages: int,
        insurance: str,
    ) -> Any:
        """Book and pay; seats stay as they are."""
        user = self._one("users", user_id)
        name = next((n for n in NEW_RESERVATIONS[:-1] if n not in self.data["reservations"]), NEW_RESERVATIONS[-1])
        booked = [self._priced(flight, cabin, len(passengers)) for flight in flights]
        price = sum(flight["price"] * len(passengers) for flight in booked)
        price += INSURANCE * len(passengers) if insurance == "yes" else 0
        price += BAG * nonfree_baggages
        methods = user["payment_methods"]
        for payment in payment_methods:
            method, amount = payment["payment_id"], payment["amount"]
            if method not in methods:
                raise Refused(f"payment method {method} not found")
            if methods[method]["source"] in ("gift_card", "certificate") and methods[method]["amount"] < amount:
                raise Refused(f"not enough balance in payment method {method}")
        paid = sum(payment["amount"] for payment in payment_methods)
        if paid != price:
            raise Refused(f"payment amount does not add up, total price is {price}, but paid {paid}")
        for payment in payment_methods:
            method = payment["payment_id"]
            if methods[method]["source"] == "gift_card":
                methods[method]["amount"] -= payment["amount"]
            elif methods[method]["source"] == "certificate":
                del methods[method]
        reservation = {
            "reservation_id": name, "user_id": user_id, "origin": origin, "destination": destination,
            "flight_type": flight_type, "cabin": cabin, "flights": booked, "passengers": deepcopy(passengers),
            "payment_history": deepcopy(payment_methods), "created_at": NOW, "total_baggages": total_baggages,
            "nonfree_baggages": nonfree_baggages, "insurance": insurance,
        }  # fmt: skip
        self._new("reservations", name, reservation)
        user["reservations"].append(name)
        return reservation

    def cancel_reservation(self, reservation_id: str) -> Any:
        reservation = self._one("reservations", reservation_id)
        history = reservation["payment_history"]
        history.extend([{"payment_id": p["payment_id"], "amount": -p["amount"]} for p in history])
        reservation["status"] = "cancelled"
        return reservation

    def send_certificate(self, user_id: str, amount: float) -> str:
        methods = self._one("users", user_id)["payment_methods"]
        for name in NEW_CERTIFICATES:
            if name not in methods:
                methods[name] = {"source": "certificate", "amount": amount, "id": name}
                return f"Certificate {name} added to user {user_id} with amount {amount}."
        return "None"  # the published function returns nothing after the third

    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> Any:
        reservation = self._one("reservations", reservation_id)
        price = BAG * max(0, nonfree_baggages - reservation["nonfree_baggages"])
        method = self._method(reservation, payment_id, price)
        reservation.update(total_baggages=total_baggages, nonfree_baggages=nonfree_baggages)
        _pay(reservation, method, payment_id, price)
        return reservation

    def update_reservation_flights(
        self, reservation_id: str, cabin: str, flights: Sequence[Flight], payment_id: str
    ) -> Any:
        """Other flights, or another cabin; the cabin of the reservation stays as it is written, as published."""
        reservation = self._one("reservations", reservation_id)
        count, chosen = len(reservation["passengers"]), list[dict[str, Any]]()
        for flight in flights:
            booked = [
                f for f in reservation["flights"]
                if f["flight_number"] == flight["flight_number"]
                and f["date"] == flight["date"] and cabin == reservation["cabin"]
            ]  # fmt: skip
            fare = {k: booked[0][k] for k in ("price", "origin", "destination")} if booked else None
            chosen.append({**deepcopy(dict(flight)), **fare} if fare else self._priced(flight, cabin, count))
        price = sum(f["price"] * count for f in chosen) - sum(f["price"] for f in reservation["flights"]) * count
        method = self._method(reservation, payment_id, price)
        reservation["flights"] = chosen
        _pay(reservation, method, payment_id, price)
        return reservation

    def update_reservation_passengers(self, reservation_id: str, passengers: Sequence[Mapping[str, Any]]) -> Any:
        reservation = self._one("reservations", reservation_id)
        if len(passengers) != len(reservation["passengers"]):
            raise Refused("number of passengers does not match")
        reservation["passengers"] = deepcopy(passengers)
        return reservation

    def _priced(self, flight: Flight, cabin: str, count: int) -> dict[str, Any]:
        number = flight["flight_number"]
        if number not in self.data["flights"]:
            raise Refused(f"flight {number} not found")
        schedule, date = self.data["flights"][number], flight["date"]
        if date not in schedule["dates"]:
            raise Refused(f"flight {number} not found on date {date}")
        day = schedule["dates"][date]
        if day["status"] != "available":
            raise Refused(f"flight {number} not available on date {date}")
        if day["available_seats"][cabin] < count:
            raise Refused(f"not enough seats on flight {number}")
        airports = {"origin": schedule["origin"], "destination": schedule["destination"]}
        return {**deepcopy(dict(flight)), "price": day["prices"][cabin], **airports}

    def _method(self, reservation: Mapping[str, Any], name: str, price: float) -> dict[str, Any]:
        methods = self._one("users", reservation["user_id"])["payment_methods"]
        if name not in methods:
            raise Refused("payment method not found")
        if methods[name]["source"] == "certificate":
            raise Refused("certificate cannot be used to update reservation")
        if methods[name]["source"] == "gift_card" and methods[name]["amount"] < price:
            raise Refused("gift card balance is not enough")
        return methods[name]


NAMES = (
    "book_reservation calculate cancel_reservation get_reservation_details get_user_details list_all_airports "
    "search_direct_flight search_onestop_flight send_certificate think transfer_to_human_agents "
    "update_reservation_baggages update_reservation_flights update_reservation_passengers"
)
FUNCTIONS: Mapping[str, Callable[..., Any]] = {name: getattr(AirlineStore, name) for name in NAMES.split()}
AirlineStore.functions = FUNCTIONS


def _available(flight: Flight, date: str) -> bool:
    return date in flight["dates"] and flight["dates"][date]["status"] == "available"


def _on(flight: Flight, date: str) -> dict[str, Any]:
    return {**{k: v for k, v in flight.items() if k != "dates"}, **flight["dates"][date]}


def _pay(reservation: dict[str, Any], method: dict[str, Any], name: str, price: float) -> None:
    if method["source"] == "gift_card":
        method["amount"] -= price
    if price != 0:
        reservation["payment_history"].append({"payment_id": name, "amount": price})

"""The functions of tau-bench's retail domain (Yao et al. 2024, arXiv:2406.12045), with the texts and side effects of
the published ones (sierra-research/tau-bench 59a200c, MIT), character by character."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rlhf_plugin_agents.suites.tau_store import Refused, Store


class RetailStore(Store):
    domain: ClassVar[str] = "retail"
    tables: ClassVar[tuple[str, ...]] = ("users", "orders", "products")

    def find_user_id_by_email(self, email: str) -> str:
        for name, user in self.data["users"].items():
            if user["email"].lower() == email.lower():
                return name
        raise Refused("user not found")

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        wanted = (first_name.lower(), last_name.lower(), zip)
        for name, user in self.data["users"].items():
            if (
                user["name"]["first_name"].lower(),
                user["name"]["last_name"].lower(),
                user["address"]["zip"],
            ) == wanted:
                return name
        raise Refused("user not found")

    def get_user_details(self, user_id: str) -> Any:
        return self._one("users", user_id)

    def get_order_details(self, order_id: str) -> Any:
        return self._one("orders", order_id)

    def get_product_details(self, product_id: str) -> Any:
        return self._one("products", product_id)

    def list_all_product_types(self) -> Any:
        return dict(sorted((p["name"], p["product_id"]) for p in self.data["products"].values()))

    def cancel_pending_order(self, order_id: str, reason: str) -> Any:
        order = self._order(order_id, "pending", "cancelled")
        if reason not in ("no longer needed", "ordered by mistake"):
            raise Refused("invalid reason")
        refunds: list[dict[str, Any]] = []
        for payment in order["payment_history"]:
            method = payment["payment_method_id"]
            refunds.append(_payment("refund", payment["amount"], method))
            if "gift_card" in method:
                self._pay(self._methods(order)[method], -payment["amount"])
        order["status"], order["cancel_reason"] = "cancelled", reason
        order["payment_history"].extend(refunds)
        return order

    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Any:
        order = self._order(order_id, "pending", "modified")
        order["address"] = _address(address1, address2, city, state, country, zip)
        return order

    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Any:
        user = self._one("users", user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return user

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Any:
        order = self._order(order_id, "pending", "modified")
        methods, history = self._methods(order), order["payment_history"]
        method = _method(methods, payment_method_id)
        if len(history) > 1 or history[0]["transaction_type"] != "payment":
            raise Refused("there should be exactly one payment for a pending order")
        amount, before = history[0]["amount"], history[0]["payment_method_id"]
        if before == payment_method_id:
            raise Refused("the new payment method should be different from the current one")
        _check_balance(method, amount, "pay for the order")
        history.extend([_payment("payment", amount, payment_method_id), _payment("refund", amount, before)])
        if method["source"] == "gift_card":
            self._pay(method, amount)
        if "gift_card" in before:
            self._pay(methods[before], -amount)
        return order

    def modify_pending_order_items(
        self, order_id: str, item_ids: Sequence[str], new_item_ids: Sequence[str], payment_method_id: str
    ) -> Any:
        order = self._order(order_id, "pending", "modified")
        difference = self._difference(order, item_ids, new_item_ids)
        method = _method(self._methods(order), payment_method_id)
        _check_balance(method, difference, "pay for the new item")
        kind = "payment" if difference > 0 else "refund"
        order["payment_history"].append(_payment(kind, abs(difference), payment_method_id))
        if method["source"] == "gift_card":
            self._pay(method, difference)
        for old, new in zip(item_ids, new_item_ids):
            item = _item(order, old)
            variant = self.data["products"][item["product_id"]]["variants"][new]
            item.update(item_id=new, price=variant["price"], options=variant["options"])
        order["status"] = "pending (item modified)"
        return order

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: Sequence[str], new_item_ids: Sequence[str], payment_method_id: str
    ) -> Any:
        order = self._order(order_id, "delivered", "exchanged")
        difference = round(self._difference(order, item_ids, new_item_ids), 2)
        method = _method(self._methods(order), payment_method_id)
        _check_balance(method, difference, "pay for the price difference")
        order.update(
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=difference,
        )
        return order

    def return_delivered_order_items(self, order_id: str, item_ids: Sequence[str], payment_method_id: str) -> Any:
        order = self._order(order_id, "delivered", "returned")
        _method(self._methods(order), payment_method_id)
        original = order["payment_history"][0]["payment_method_id"]
        if "gift_card" not in payment_method_id and payment_method_id != original:
            raise Refused("payment method should be either the original payment method or a gift card")
        if _too_many(order, item_ids):
            raise Refused("some item not found")
        order.update(
            status="return requested", return_items=sorted(item_ids), return_payment_method_id=payment_method_id
        )
        return order

    def _order(self, name: str, status: str, what: str) -> Any:
        order = self._one("orders", name)
        if order["status"] != status:
            raise Refused(f"non-{status} order cannot be {what}")
        return order

    def _methods(self, order: Mapping[str, Any]) -> dict[str, Any]:
        return self._one("users", order["user_id"])["payment_methods"]

    def _difference(self, order: Mapping[str, Any], item_ids: Sequence[str], new_item_ids: Sequence[str]) -> float:
        """What the new variants cost more; not rounded, as the published function for pending orders leaves it."""
        if missing := _too_many(order, item_ids):
            raise Refused(f"{missing} not found")
        if len(item_ids) != len(new_item_ids):
            raise Refused("the number of items to be exchanged should match")
        total: float = 0
        for old, new in zip(item_ids, new_item_ids):
            item = _item(order, old)
            variants = self.data["products"][item["product_id"]]["variants"]
            if not (new in variants and variants[new]["available"]):
                raise Refused(f"new item {new} not found or available")
            total += variants[new]["price"] - item["price"]
        return total

    def _pay(self, method: dict[str, Any], amount: float) -> None:
        method["balance"] = round(method["balance"] - amount, 2)


NAMES = (
    "calculate cancel_pending_order exchange_delivered_order_items find_user_id_by_email find_user_id_by_name_zip "
    "get_order_details get_product_details get_user_details list_all_product_types modify_pending_order_address "
    "modify_pending_order_items modify_pending_order_payment modify_user_address return_delivered_order_items think "
    "transfer_to_human_agents"
)
FUNCTIONS: Mapping[str, Callable[..., Any]] = {name: getattr(RetailStore, name) for name in NAMES.split()}
RetailStore.functions = FUNCTIONS


def _address(*values: str) -> dict[str, str]:
    return dict(zip(("address1", "address2", "city", "state", "country", "zip"), values))


def _payment(kind: str, amount: float, method: str) -> dict[str, Any]:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method}


def _method(methods: Mapping[str, Any], name: str) -> dict[str, Any]:
    if name not in methods:
        raise Refused("payment method not found")
    return methods[name]


def _check_balance(method: Mapping[str, Any], amount: float, what: str) -> None:
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise Refused(f"insufficient gift card balance to {what}")


def _item(order: Mapping[str, Any], name: str) -> dict[str, Any]:
    return next(i for i in order["items"] if i["item_id"] == name)


def _too_many(order: Mapping[str, Any], item_ids: Sequence[str]) -> str:
    """The first item that is asked for more often than the order has it."""
    there = [i["item_id"] for i in order["items"]]
    return next((i for i in item_ids if list(item_ids).count(i) > there.count(i)), "")

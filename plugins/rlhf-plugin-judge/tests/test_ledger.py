"""Several processes share one cap; killed ones leave their worst case behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_plugin_judge.ledger import Ledger
from rlhf_plugin_judge.prices import NANO, PRICES, Price, Tokens, cost, most, price_of

SPEND = """
import sys
from pathlib import Path
from rlhf_plugin_judge.ledger import Ledger
ledger, got = Ledger(Path(sys.argv[1]), 1.0), 0
while (name := ledger.reserve(5_000_000, "x")) is not None:
    got += 1
    ledger.settle(name, 2_000_000)
print(got)
"""


@pytest.mark.slow
def test_processes_share_one_cap(tmp_path: Path):
    file = tmp_path / "l.jsonl"
    running = [subprocess.Popen([sys.executable, "-c", SPEND, str(file)], stdout=subprocess.PIPE) for _ in range(2)]
    reservation_counts = [int(p.communicate(timeout=60)[0]) for p in running]
    # 499 answers of 0.002 leave 0.002, too little to reserve 0.005; two in flight may refuse each other one earlier
    assert 497 <= sum(reservation_counts) <= 499
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    open_usd: dict[str, float] = {}
    for row in rows:
        open_usd[row["id"]] = row["usd"]
        assert sum(open_usd.values()) <= 1.0 + 1e-9


def test_what_a_killed_process_reserved_stays_and_its_torn_row_goes(tmp_path: Path):
    first = Ledger(tmp_path / "l.jsonl", 1.0)
    name = first.reserve(300, "a")
    assert name
    first.reserve(200, "b")
    with (tmp_path / "l.jsonl").open("a") as file:
        file.write('{"op": "settle", "id": "' + name[:9])
    second = Ledger(tmp_path / "l.jsonl", 1.0)
    assert second.total == 500
    second.settle(name, 100)
    assert first.reserve(1, "c")
    assert first.total == 301
    assert Ledger(tmp_path / "l.jsonl", 301 / NANO).reserve(1, "d") is None


def test_costs_are_exact_and_the_bound_is_one():
    price = Price(input=1, output=5)
    assert cost(price, Tokens(1000, 100, 2000, 3000)) == (1000 + 500 + 2500 + 300) * 1000
    assert cost(price, Tokens(1000, 100), 0.5) == 750_000
    text = "Wie groß ist π? " * 50
    assert most(price, [text], 10) >= cost(price, Tokens(0, 10, len(text.encode())))
    assert price_of("claude-haiku-4-5-20251001", PRICES) == PRICES["claude-haiku-4-5"]
    assert price_of("claude-haiku-4", PRICES) is None

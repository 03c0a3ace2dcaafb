"""Who is answered, with what, and what a reader gets who knows a part already."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rlhf_plugin_dashboard import serve as module
from rlhf_plugin_dashboard.curves import RunData
from rlhf_plugin_dashboard.serve import Dashboard


def ask(server: Dashboard, path: str, method: str = "GET", host: str | None = "") -> tuple[int, Any, bytes]:
    """Status, headers and body; ``host`` "" is the right one, None none."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    if host is not None:
        connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    response = connection.getresponse()
    return response.status, response.headers, response.read()


def news(server: Dashboard, name: str, metrics: str = "", rollouts: str = "") -> dict[str, Any]:
    query = f"name={quote(name)}&metrics={metrics}&rollouts={rollouts}"
    status, _, body = ask(server, f"/{server.token}/api/run?{query}")
    assert status == 200, body
    return json.loads(body)


@pytest.fixture
def server(serve: Callable[[Path], Dashboard], root: Path) -> Dashboard:
    return serve(root)


def test_it_listens_on_this_machine_only(server: Dashboard) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "0.0.0.0", "[::1]", None]
)
def test_another_host_is_refused_whatever_it_knows(server: Dashboard, host: str | None) -> None:
    status, _, body = ask(server, f"/{server.token}/api/runs", host=host if host != "" else " ")
    assert status == 403
    assert b"127.0.0.1 and localhost only" in body


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1"])
def test_this_machine_is_answered_under_its_names_also_through_a_tunnel(server: Dashboard, host: str) -> None:
    assert ask(server, f"/{server.token}/api/runs", host=host)[0] == 200


def test_two_hosts_in_one_request_are_refused(server: Dashboard) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest("GET", f"/{server.token}/", skip_host=True)
    for host in ("localhost", "evil.example"):
        connection.putheader("Host", host)
    connection.endheaders()
    assert connection.getresponse().status == 403


@pytest.mark.parametrize("path", ["/", "/api/runs", "/wrong/", "/{token}x/", "/é/", "//", "/?token={token}"])
def test_without_the_token_nothing_is_told(server: Dashboard, path: str) -> None:
    sent = path.format(token=server.token).encode().decode("latin-1")
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection._validate_path = lambda url: None  # type: ignore[method-assign]
    connection._encode_request = lambda request: request.encode("latin-1")  # type: ignore[method-assign]
    connection.request("GET", sent)
    response = connection.getresponse()
    body = response.read()
    assert response.status == 403
    assert b"token is missing or wrong" in body
    assert server.token.encode() not in body


def test_tokens_are_compared_in_constant_time_and_differ(
    server: Dashboard, serve: Callable[[Path], Dashboard], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.token != serve(root).token
    assert len(server.token) >= 32
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: bool(compared.append((a, b))))
    assert not server.is_token("x")
    assert compared == [(b"x", server.token.encode())]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_it_only_reads(server: Dashboard, method: str) -> None:
    status, headers, _ = ask(server, f"/{server.token}/api/runs", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_head_has_no_body(server: Dashboard) -> None:
    status, headers, body = ask(server, f"/{server.token}/", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 500


def test_the_page_and_its_scripts_come_from_here_alone(server: Dashboard) -> None:
    status, headers, body = ask(server, f"/{server.token}/")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert b"http" not in body
    for name in ("bokeh.min.js", "bokeh-api.min.js", "curves.js", "lists.js", "dashboard.js", "dashboard.css"):
        assert f'"{name}"'.encode() in body
        assert ask(server, f"/{server.token}/{name}")[0] == 200


def test_the_opening_address_works_once(server: Dashboard) -> None:
    path = "/" + server.opening_url.split("/", 3)[3]
    status, headers, _ = ask(server, path)
    assert (status, headers["Location"]) == (302, server.url)
    assert ask(server, path)[0] == 403


@pytest.mark.parametrize("path", ["../first/plan.json", "first/plan.json", "api", "server.py"])
def test_no_other_file_is_served(server: Dashboard, path: str) -> None:
    assert ask(server, f"/{server.token}/{path}")[0] == 404


@pytest.mark.parametrize("name", ["", "nowhere", "../runs/first", "first/../first", "/", "first\x00"])
def test_a_run_that_is_not_in_the_list_is_not_read(server: Dashboard, name: str) -> None:
    for path in ("api/run?name=", "report?run="):
        assert ask(server, f"/{server.token}/{path}{quote(name)}")[0] == 404


def test_every_run_is_listed_the_newest_first_and_new_ones_appear(
    server: Dashboard, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_plugin_dashboard.site.RESCAN_S", 0.0)

    def names() -> list[str]:
        return [run["name"] for run in json.loads(ask(server, f"/{server.token}/api/runs")[2])["runs"]]

    assert sorted(names()) == ["first", "sweep/second"]
    (root / "third").mkdir()
    (root / "third" / "plan.json").write_text("{")
    assert names()[0] == "third"
    (root / "third" / "plan.json").unlink()
    assert "third" not in names()


def test_a_reader_gets_each_point_and_rollout_once(server: Dashboard, growing) -> None:
    growing.append("metrics", 2)
    growing.append("trace", 2)
    growing.append_half("metrics")
    first = news(server, "first")
    assert first["metrics"]["curves"]["reward/mean"][0] == [1]
    assert first["groups"]["reward/mean"].endswith(" Reward")
    assert first["rollouts"]["rows"]
    growing.append("metrics", 1)
    growing.append("trace", 1)
    second = news(server, "first", first["metrics"]["cursor"], first["rollouts"]["cursor"])
    assert second["metrics"]["curves"]["reward/mean"][0] == [2]
    assert not second["metrics"]["restarted"]
    third = news(server, "first", second["metrics"]["cursor"], second["rollouts"]["cursor"])
    assert (third["metrics"]["curves"], third["rollouts"]["rows"]) == ({}, [])
    assert news(server, "first")["metrics"]["curves"]["reward/mean"][0] == [1, 2]


def test_a_resumed_run_is_sent_anew(server: Dashboard, growing) -> None:
    growing.append("metrics", 4)
    first = news(server, "first")
    text = (growing.path / "metrics.jsonl").read_bytes()
    (growing.path / "metrics.jsonl").write_bytes(b"".join(text.splitlines(True)[:2]))
    second = news(server, "first", first["metrics"]["cursor"], first["rollouts"]["cursor"])
    assert second["metrics"]["restarted"]
    assert second["metrics"]["curves"]["reward/mean"][0] == [1]


@pytest.mark.parametrize("cursor", ["x", "0.999999", "0.-1", "7.1", "0.1.1", "0." + "9" * 99])
def test_a_cursor_of_something_else_gets_everything(server: Dashboard, cursor: str) -> None:
    got = news(server, "first", cursor, cursor)
    assert got["metrics"]["restarted"]
    assert len(got["metrics"]["curves"]["reward/mean"][0]) == 4
    assert got["rollouts"]["rows"]


def test_a_long_curve_is_thinned_and_keeps_its_end(server: Dashboard, growing) -> None:
    rows = [{"step": n, "reward/mean": n / 7, "broken": None, "time": {"step": 0.5}} for n in range(1, 5001)]
    (growing.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    curves = news(server, "first")["metrics"]["curves"]
    assert set(curves) == {"reward/mean", "time/step"}
    assert len(curves["reward/mean"][0]) == 1000
    assert curves["reward/mean"][0][-1] == 5000


def test_a_long_completion_is_cut_and_says_so(server: Dashboard, growing) -> None:
    row = {"event": "prompt", "step": 1, "prompt": "p", "completions": [{"text": "x" * 10_000, "score": 1.0}, "odd"]}
    (growing.path / "trace.jsonl").write_text(json.dumps(row) + "\n")
    (only,) = news(server, "first")["rollouts"]["rows"]
    assert only["text"].endswith("(6000 more characters)")


def test_the_report_of_selected_runs_is_in_a_sandbox(server: Dashboard, root: Path) -> None:
    for run in ("first", "sweep/second"):
        rows = [{"step": n, "reward/mean": 0.1 * n} for n in (1, 2)]
        (root / run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, headers, body = ask(server, f"/{server.token}/report?run=first&run=sweep/second&run=nowhere")
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("sandbox allow-scripts")
    assert b"second" in body
    assert b"<!doctype html>" in body


def test_a_damaged_run_has_a_report_that_names_the_damage_and_one_that_is_gone_has_none(
    server: Dashboard, root: Path
) -> None:
    (root / "first" / "plan.json").write_text("{")
    status, _, body = ask(server, f"/{server.token}/report?run=first")
    assert status == 200
    assert b"plan.json" in body
    (root / "first" / "plan.json").unlink()
    status, _, body = ask(server, f"/{server.token}/report?run=first")
    assert (status, b"is not a run" in body) == (409, True)
    assert ask(server, f"/{server.token}/api/runs")[0] == 200


def test_a_run_has_its_monitors_lights_and_thresholds(server: Dashboard, root: Path) -> None:
    folder = root / "first"
    plan = json.loads((folder / "plan.json").read_text())
    thresholds = {"length_z": 2.5, "kl": 0.15}
    plan["config"]["monitors"] = [{"name": "hacking", "preset": "classic", "classic": thresholds}, {"name": "kl_spike"}]
    (folder / "plan.json").write_text(json.dumps(plan))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "hacking/level": 1.0, "hacking/length_z": 2.9}) + "\n")
    warning = {"step": 4, "stage": "monitor", "event": "warning", "monitor": "hacking", "stops": False}
    with (folder / "trace.jsonl").open("a") as file:
        file.write(json.dumps({**warning, "text": "hacking WARNING: length: completions went from 8 to 20"}) + "\n")
    told = news(server, "first")
    assert told["thresholds"] == {"hacking/length_z": [2.5, -2.5], "hacking/reward_kl": [0.15]}
    lights = {row["name"]: (row["colour"], row["reason"]) for row in told["statuses"]}
    assert lights["length"][0] == "amber"
    assert lights["length"][1].startswith("step 4: hacking WARNING: length")
    assert lights["kl_spike"] == ("green", "no warning in 4 steps")
    assert {"length", "distribution"} <= lights.keys()
    assert "divergence" not in lights


def test_a_green_light_says_what_of_the_trace_it_has_not_seen(root: Path) -> None:
    folder = root / "first"
    plan = json.loads((folder / "plan.json").read_text())
    plan["config"]["monitors"] = [{"name": "kl_spike"}]
    (folder / "plan.json").write_text(json.dumps(plan))
    data = RunData(folder)
    data._trace.newest = 2000
    lights = {row["name"]: row["reason"] for row in data.since("", "")["statuses"]}
    assert lights["kl_spike"] == "no warning in 4 steps in the newest part of its trace"


def test_nothing_is_written(server: Dashboard, root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    ask(server, f"/{server.token}/api/runs")
    news(server, "first")
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before

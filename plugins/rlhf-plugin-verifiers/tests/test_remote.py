"""A reward behind a server: scores, versions, faults, and a server that dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.config import ConfigError
from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_verifiers.remote import TOKEN
from rlhf_plugin_verifiers.remote.client import PROTOCOL, RemoteReward, cut
from rlhf_plugin_verifiers.remote.config import RemoteConfig
from rlhf_plugin_verifiers.remote.server import RewardServer, keeps_values


def sample(name: str, text: str) -> Sample:
    return Sample(Prompt(name, ({"role": "user", "content": "2 + 2?"},), answer="4", meta={"level": 3}), text)


SAMPLES = [sample("a/1", "4"), sample("a/1", "five"), sample("a/2", "44"), sample("a/3", "")]


class Lengths:
    """The number of characters; none for an empty text. It keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[Sample]] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        self.entered.set()
        self.go_on.wait(20)
        self.calls.append(list(samples))
        empty = Score.failed(ScoreStatus.MISSING, "an empty text")
        return [
            Score(float(len(s.completion)), {"length": len(s.completion)}) if s.completion else empty for s in samples
        ]


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def served(reward: Any, version: str = "one", port: int = 0) -> Any:
    health = {"protocol": PROTOCOL, "version": version, "reward": "lengths"}
    return running(RewardServer(("127.0.0.1", port), reward, health, 100))


def client(url: str, **settings: Any) -> RemoteReward:
    return RemoteReward(RemoteConfig(url=url, retry_wait_s=0.0, **settings))


def test_scores_come_back_in_order_with_parts_and_reasons() -> None:
    reward = Lengths()
    with served(reward) as url:
        remote = client(url, batch_size=2, max_concurrent=1)
        remote.check_server()
        scores = remote.score(SAMPLES)
    assert [s.value for s in scores] == [1.0, 4.0, 2.0, None]
    assert scores[1].parts == {"length": 4.0}
    assert (scores[3].status, scores[3].detail) == (ScoreStatus.MISSING, "an empty text")
    assert [s for call in reward.calls for s in call] == SAMPLES
    assert remote.state_dict() == {"version": "one"}


def test_completions_of_one_prompt_are_not_parted() -> None:
    parts = cut([*SAMPLES[:2], sample("a/1", "x"), *SAMPLES[2:]], 2)
    assert [len(part) for part in parts] == [3, 2]


def test_requests_that_wait_are_scored_in_one_call_but_groups_are_not_joined() -> None:
    reward = Lengths()
    reward.go_on.clear()
    server = RewardServer(("127.0.0.1", 0), reward, {"protocol": PROTOCOL, "version": "one"}, 100)
    asked = [[sample(name, "x" * n)] for n, name in enumerate(("first", "a", "b", "a", "c"), 1)]
    answers: dict[int, Sequence[Score]] = {}

    def ask(n: int) -> None:
        answers[n] = server.ask(asked[n])

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(asked))]
    threads[0].start()
    assert reward.entered.wait(20)
    for n, thread in enumerate(threads[1:], 1):
        thread.start()
        while server.waiting.qsize() < n:
            pass
    reward.go_on.set()
    for thread in threads:
        thread.join(20)
    server.server_close()
    assert [[s.prompt.id for s in call] for call in reward.calls] == [["first"], ["a", "b"], ["a", "c"]]
    assert [answers[n][0].value for n in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_another_version_is_refused_at_the_start_on_resume_and_in_an_answer() -> None:
    with served(Lengths(), "two") as url:
        with pytest.raises(ConfigError, match="has version two, not one"):
            client(url, version="one").check_server()
        with pytest.raises(ConfigError, match="has version two, not one"):
            client(url).load_state_dict({"version": "one"})
        stale = client(url, version="one").score(SAMPLES)
    assert {(s.status, s.value) for s in stale} == {(ScoreStatus.ERROR, None)}
    assert "now has version two, not one" in stale[0].detail


class Answers(BaseHTTPRequestHandler):
    """Answers each request with the next of the server's (code, body)."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        code, body = self.server.answers.pop(0)  # pyright: ignore[reportAttributeAccessIssue]
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode() if code != 299 else b"{")

    def log_message(self, format: str, *args: Any) -> None: ...


def scripted(*answers: tuple[int, Any]) -> Any:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.answers = list(answers)  # pyright: ignore[reportAttributeAccessIssue]
    return running(server)


GOOD = {"value": 1.0, "parts": {}, "status": "ok", "detail": ""}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"version": "one", "scores": [GOOD]}, "sent 1 scores for 2 completions"),
        ({"version": "one"}, "sent no scores for 2 completions"),
        ({"version": "one", "scores": [GOOD, {**GOOD, "value": None}]}, "cannot be read"),
        ({"version": "one", "scores": [GOOD, {**GOOD, "parts": [1]}]}, "cannot be read"),
        ({"version": "one", "scores": [GOOD, {**GOOD, "detail": 3}]}, "is no text"),
        ([], "it answered"),
    ],
)
def test_an_answer_that_is_not_one_score_each_gives_none(body: Any, why: str) -> None:
    with scripted((200, body)) as url:
        scores = client(url, version="one").score(SAMPLES[:2])
    assert [(s.status, s.value) for s in scores] == [(ScoreStatus.ERROR, None)] * 2
    assert why in scores[0].detail


def test_faults_of_the_server_are_retried_and_refusals_are_not() -> None:
    whole = (200, {"version": "one", "scores": [GOOD, GOOD]})
    with scripted((500, {}), (299, None), whole) as url:
        assert [s.value for s in client(url, version="one", retries=2).score(SAMPLES[:2])] == [1.0, 1.0]
    with scripted((400, {"error": "no"}), whole) as url:
        (score, _) = client(url, version="one", retries=2).score(SAMPLES[:2])
    assert (score.status, score.value) == (ScoreStatus.ERROR, None)
    with scripted((500, {"error": "out of memory"}), (503, {})) as url:
        (score, _) = client(url, version="one", retries=1).score(SAMPLES[:2])
    assert (score.status, score.value) == (ScoreStatus.MISSING, None)


def test_an_error_whose_text_breaks_off_is_missing_for_its_own_request_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(2**16)
                connection.sendall(b"HTTP/1.1 500 Error\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n")
                connection.recv(2**16)  # until the client is done

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (score,) = client(url, version="one", retries=0).score(SAMPLES[:1])
    assert (score.status, score.value) == (ScoreStatus.MISSING, None)
    assert "it answered 500" in score.detail


def test_a_reward_that_hangs_is_a_timeout() -> None:
    reward = Lengths()
    reward.go_on.clear()
    with served(reward) as url:
        (score,) = client(url, version="one", deadline_s=0.2).score(SAMPLES[:1])
        reward.go_on.set()
    assert (score.status, score.value) == (ScoreStatus.TIMEOUT, None)


def test_a_server_with_a_token_answers_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    with served(Lengths()) as url:
        remote = client(url)
        remote.check_server()
        monkeypatch.setenv(TOKEN, "guess")
        with pytest.raises(ConfigError, match=f"401: .*{TOKEN}"):
            client(url).check_server()
        (score,) = remote.score(SAMPLES[:1])
    assert (score.status, score.value) == (ScoreStatus.ERROR, None)


def test_a_reward_whose_state_would_be_lost_is_told_from_others() -> None:
    class Running(Lengths):
        def __init__(self, state: Any) -> None:
            super().__init__()
            self.state = state

        def state_dict(self) -> Any:
            return self.state

    assert keeps_values(Running({"statistics": {"length": [3, 1.0, 0.5]}}))
    assert not keeps_values(Running({"statistics": {"length": {}}}))
    assert not keeps_values(Lengths())
    assert not keeps_values(torch.nn.Linear(1, 1))


@pytest.mark.slow
def test_a_run_is_scored_by_the_command_and_a_killed_server_is_missing(rlhf: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rlhf_core.cli.main", "reward", "serve", "verifier", "--port", "0"]
    server = subprocess.Popen([*command, "--set", "verifier={name: numeric}"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        version, url = server.stdout.readline().split()[-1], server.stdout.readline().strip()
        remote = client(url, version=version, retries=0)
        remote.check_server()
        assert [s.value for s in remote.score(SAMPLES[:3])] == [1.0, 0.0, 0.0]
        settings = [f"reward.url={url}", "dataset.limit=64", "threads=1", "trainer.steps=1", "trainer.eval_samples=0"]
        words = [word for text in (*settings, "trainer.rollout_batch_size=8") for word in ("--set", text)]
        task = ("train", "--algo", "grpo", "--reward", "remote", "--dataset", "pocket/arithmetic")
        assert rlhf(*task, *words, "--run-dir", tmp_path / "run").code == 0
        assert json.loads((tmp_path / "run/summary.json").read_text())["dropped"]["scores_ok"] == 8
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        scores = remote.score(SAMPLES)
        assert [(s.status, s.value) for s in scores] == [(ScoreStatus.MISSING, None)] * 4
        assert "cannot be reached" in scores[0].detail
        refused = rlhf(*task, *words, "--run-dir", tmp_path / "another")
        assert refused.code == 2
        assert f"reward server '{url}' does not answer" in refused.err
        assert "unknown reward 'no_such_reward'" in rlhf("reward", "serve", "no_such_reward").err
    finally:
        server.kill()
        server.wait()

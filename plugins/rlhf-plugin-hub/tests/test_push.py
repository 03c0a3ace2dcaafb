"""`rlhf push` to a server on this machine that answers as the hub does for files inside a commit."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from rlhf_core.models.sources import resolve_model

Rlhf = Callable[..., Any]
ADDRESS = [""]
"""Of the server."""


class Hub(BaseHTTPRequestHandler):
    """The endpoints that a push uses."""

    made: ClassVar[list[dict[str, Any]]] = []
    files: ClassVar[dict[str, bytes]] = {}
    tokens: ClassVar[set[str]] = set()
    private = True

    def do_POST(self) -> None:
        """One request."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.tokens.add(self.headers.get("Authorization", ""))
        path = self.path.partition("?")[0]
        if self.headers.get("Authorization") == "Bearer wrong":
            return self.answer({"error": "no"}, 401)
        if path == "/api/repos/create":
            self.made.append(json.loads(body))
            return self.answer({"url": f"{ADDRESS[0]}/{self.made[-1]['organization']}/{self.made[-1]['name']}"})
        if path.endswith("/preupload/main"):
            names = [row["path"] for row in json.loads(body)["files"]]
            rows = [{"path": n, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for n in names]
            return self.answer({"files": rows})
        if path.endswith("/commit/main"):
            for row in (json.loads(line) for line in body.splitlines()):
                if row["key"] == "file":
                    self.files[row["value"]["path"]] = base64.b64decode(row["value"]["content"])
            return self.answer(
                {"success": True, "commitOid": "0" * 40, "commitUrl": f"{ADDRESS[0]}/org/name/commit/{'0' * 40}"}
            )
        return self.answer({})

    def do_GET(self) -> None:
        """The repository's state, which some versions ask for."""
        self.answer({"id": "org/name", "sha": "0" * 40, "siblings": [], "private": self.private})

    def answer(self, value: Any, status: int = 200) -> None:
        """JSON."""
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """The server in place of the hub; nothing has reached it yet."""
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    ADDRESS[0] = address
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    Hub.made.clear(), Hub.files.clear(), Hub.tokens.clear()
    yield Hub
    server.shutdown()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(resolve_model("pocket").path, folder)
    (folder / "README.md").write_text("---\nlicense: unknown\n---\n# A card\n")
    (folder / ".secret").write_text("x")
    return folder


def test_a_dry_run_shows_files_sizes_and_card(rlhf: Rlhf, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    ran = rlhf("push", model, "--to", "org/name", "--dry-run", "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told["files"]["model.safetensors"] == (model / "model.safetensors").stat().st_size
    assert ".secret" not in told["files"]
    assert told["bytes"] == sum(told["files"].values())
    assert told["private"] is True
    assert told["card"].endswith("# A card\n")
    text = rlhf("push", model, "--to", "org/name", "--dry-run").out
    assert "Nothing was sent." in text
    assert "# A card" in text


def test_every_file_arrives_in_a_private_repository(rlhf: Rlhf, model: Path, hub: type[Hub]) -> None:
    ran = rlhf("push", model, "--to", "org/name")
    assert ran.code == 0, ran.err
    assert hub.made[0]["name"] == "name"
    assert hub.made[0]["organization"] == "org"
    assert hub.made[0].get("private") or hub.made[0].get("visibility") == "private"
    assert hub.tokens == {"Bearer secret-token"}
    assert hub.files.keys() == {p.name for p in model.iterdir()} - {".secret"}
    assert all(data == (model / name).read_bytes() for name, data in hub.files.items())
    assert "secret-token" not in ran.out + ran.err
    assert "empty page" not in ran.err
    (model / "README.md").unlink()
    ran = rlhf("push", model, "--to", "org/name")
    assert (ran.code, "there is no README.md: the hub shows an empty page" in ran.err) == (0, True)


def test_nothing_goes_unasked_to_a_repository_that_everyone_sees(
    rlhf: Rlhf, model: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = rlhf("push", model, "--to", "org/name", "--public")
    assert ran.code == 0, ran.err
    assert "'org/name' was there, and stays private" in ran.err
    hub.files.clear()
    monkeypatch.setattr(hub, "private", False)
    ran = rlhf("push", model, "--to", "org/name")
    assert ran.code == 2, ran.err
    assert "'org/name' is there, and public" in ran.err
    assert not hub.files
    assert rlhf("push", model, "--to", "org/name", "--public").code == 0
    assert hub.files


def test_folders_of_this_machine_are_pointed_out(rlhf: Rlhf, model: Path) -> None:
    assert json.loads(rlhf("push", model, "--to", "org/name", "--dry-run", "--json").out)["names_this_machine"] == []
    (model / "notes.json").write_text(json.dumps({"base": str(model.parent / "base"), "seed": 1}))
    told = json.loads(rlhf("push", model, "--to", "org/name", "--dry-run", "--json").out)["names_this_machine"]
    assert told == [f"notes.json names {model.parent / 'base'}"]
    assert f"warning: notes.json names {model.parent}" in rlhf("push", model, "--to", "org/name", "--dry-run").out


def test_a_refusal_is_explained(rlhf: Rlhf, model: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "wrong")
    ran = rlhf("push", model, "--to", "org/name")
    assert ran.code == 1
    assert "'org/name' was not pushed" in ran.err
    assert "Traceback" not in ran.err
    assert not hub.files


def test_no_token(rlhf: Rlhf, model: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    ran = rlhf("push", model, "--to", "org/name")
    assert ran.code == 2
    assert "there is no token for the hub" in ran.err
    assert "set HF_TOKEN" in ran.err
    assert not hub.made


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        ("pocket", "a b/c", "is not a name of a repository"),
        ("pocket", "name", "names no organisation or user"),
        ("./nowhere", "org/name", "there is no model folder './nowhere'"),
        ("org/model", "org/name", "'org/model' is not a folder here"),
    ],
)
def test_wrong_input(rlhf: Rlhf, path: str, to: str, message: str) -> None:
    ran = rlhf("push", path, "--to", to, "--dry-run")
    assert ran.code == 2
    assert message in ran.err


def test_offline_is_said(rlhf: Rlhf, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    ran = rlhf("push", model, "--to", "org/name")
    assert ran.code == 2
    assert "HF_HUB_OFFLINE is set" in ran.err

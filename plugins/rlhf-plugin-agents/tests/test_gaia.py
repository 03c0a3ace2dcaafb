"""GAIA: the scorer, the shipped 30, and tasks of the published form from a folder or a local copy of the hub's."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError, ToolCall
from rlhf_core.rollouts import ToolError
from rlhf_plugin_agents.agents.config import AGENTS
from rlhf_plugin_agents.backends.base import BackendFault
from rlhf_plugin_agents.backends.config import ScriptedConfig
from rlhf_plugin_agents.harness import Job, carry_out, play_one, prepare
from rlhf_plugin_agents.scorers import gaia_match
from rlhf_plugin_agents.suites.config import AgentBenchMini
from rlhf_plugin_agents.suites.gaia import mini_rows
from rlhf_plugin_agents.suites.gaia_config import Gaia, GaiaMini
from rlhf_plugin_agents.tools.attachments import text_of
from rlhf_plugin_agents.tools.web_config import WebSearchConfig

ROWS = {row["id"]: row for row in mini_rows()}


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        ("$1,250.00", "1250", True),
        ("17 percent", "17", False),
        ("17%", "17", True),
        ("1e3", "1000", True),
        ("eleven", "11", False),
        ("St. Petersburg", "stpetersburg", True),
        ("the seagull", "Seagull", False),
        ("sea gull", "Seagull", True),
        ("Paris; rome", "Paris, Rome", True),
        ("Rome, Paris", "Paris, Rome", False),
        ("Paris, Rome, Bern", "Paris, Rome", False),
        ("a, $3, c", "a, 3, c", True),
        ("St. Ives, 3", "St Ives, 3", False),
        ("", "5", False),
        ("", "x", False),
        ("", "+", False),
        ("-", "+", False),
        (" + ", "+", True),
    ],
)
def test_the_published_comparison(answer: str, reference: str, right: bool) -> None:
    assert gaia_match(answer, {"answer": reference}) == float(right)


def test_ten_tasks_of_each_level() -> None:
    assert [r["level"] for r in ROWS.values()] == [1] * 10 + [2] * 10 + [3] * 10
    for row in ROWS.values():
        low, high = {1: (1, 1), 2: (2, 4), 3: (4, 9)}[row["level"]]
        assert low <= len(row["calls"]) <= high, row["id"]


def test_the_calls_return_what_the_answer_needs(ctx: Any) -> None:
    for task in GaiaMini().tasks(ctx):
        row, box = ROWS[task.id], task.open(0).box
        results = "\n".join(box.call(ToolCall(c["name"], c["arguments"])).result for c in row["calls"])
        for piece in row["evidence"]:
            assert piece in results, (task.id, piece, results)
        assert gaia_match(row["answer"], row) == 1
        assert gaia_match(row["wrong"][0], row) == 0
        assert all(f in str(task.messages[0]["content"]) for f in row.get("files", ()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five tasks in the published form, with attachments."""
    place = tmp_path / "GAIA" / "2023" / "validation"
    place.mkdir(parents=True)
    (place / "a.csv").write_text("x\n12\n")
    sheet(place / "b.xlsx")
    rows = [
        {"task_id": "t1", "Question": "2 + 2?", "Level": 1, "Final answer": "4", "file_name": ""},
        {"task_id": "t2", "Question": "Which x?", "Level": "1", "Final answer": "12", "file_name": "a.csv"},
        {
            "task_id": "t3",
            "Question": "Which towns?",
            "Level": 2,
            "Final answer": "Brenn, Telle",
            "file_name": "b.xlsx",
        },
        {"task_id": "t4", "Question": "Which bird?", "Level": 3, "Final answer": "kestrel"},
    ]
    (place / "metadata.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path / "GAIA"


def sheet(file: Path) -> None:
    name = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xl/sharedStrings.xml", f"<sst {name}><si><t>Brenn</t></si><si><t>Tel</t><t>le</t></si></sst>")
        cells = '<row><c r="A1" t="s"><v>0</v></c><c r="C1"><v>3.5</v></c></row><row><c r="B2" t="s"><v>1</v></c></row>'
        archive.writestr("xl/worksheets/sheet1.xml", f"<worksheet {name}><sheetData>{cells}</sheetData></worksheet>")


@pytest.mark.parametrize("agent", AGENTS)
def test_oracle_and_always_wrong(agent: str, folder: Path, ctx: Any) -> None:
    suites = [Gaia(path=str(folder))] + ([GaiaMini()] if agent in ("react", "scratchpad") else [])
    for suite in suites:
        tasks = suite.tasks(ctx)
        for script, wanted in (("oracle", True), ("wrong", False)):
            backend = ScriptedConfig(script=script).make(tasks, ctx)
            rows = [play_one(suite.agent_config(agent), backend, t, 0, 0) for t in tasks]
            assert {r["right"] for r in rows} == {wanted}, [(r["task"], r["answer"], r["detail"]) for r in rows]


def test_a_task_reads_its_attachment_and_no_other_file(folder: Path, ctx: Any) -> None:
    tasks = {t.id: t for t in Gaia(path=str(folder)).tasks(ctx)}
    assert [t.level for t in tasks.values()] == [1, 1, 2, 3]
    box = tasks["t2"].open(0).box
    assert box.call(ToolCall("files", {"path": "a.csv"})).result == "x\n12\n"
    for path in ("metadata.jsonl", "b.xlsx", "../../x"):
        assert "there is no file" in box.call(ToolCall("files", {"path": path})).result
    assert tasks["t3"].open(0).box.call(ToolCall("files", {"path": "b.xlsx"})).result == "[sheet 1]\nBrenn,,3.5\n,Telle"
    assert "files" not in str(tasks["t1"].open(0).box.specs)
    assert "Attached: b.xlsx" in str(tasks["t3"].messages)


def test_another_attachment_is_another_evaluation(folder: Path, ctx: Any, tmp_path: Path) -> None:
    def prepared() -> Any:
        suite = Gaia(path=str(folder))
        return prepare(Job(suite, suite.agent_config("react"), ScriptedConfig()), ctx, tmp_path / "out")

    carry_out(prepared(), ctx, 1, lambda text: None)
    assert not prepared().todo
    (folder / "2023" / "validation" / "a.csv").write_text("x\n13\n")
    with pytest.raises(ConfigError, match="they differ in tasks"):
        prepared()


def test_office_documents_archives_and_pictures(tmp_path: Path) -> None:
    for name, part, tag in (("d.docx", "word/document.xml", "w"), ("s.pptx", "ppt/slides/slide1.xml", "a")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            text = "<k:p><k:t>One</k:t><k:t> line</k:t></k:p><k:p><k:t>Two</k:t></k:p>".replace("k:", f"{tag}:")
            archive.writestr(part, f'<x xmlns:{tag}="u">{text}</x>')
        assert text_of(tmp_path / name) == "One line\nTwo"
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("in/it.txt", "x")
    assert text_of(tmp_path / "z.zip") == "in/it.txt"
    (tmp_path / "p.png").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "w.xlsx").write_bytes(b"no archive")
    for name, message in (("p.png", "pictures, sounds and PDF"), ("w.xlsx", "is broken")):
        with pytest.raises(ToolError, match=message):
            text_of(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file_name": "lost.pdf"}, "the attachment 'lost.pdf' of task t1 is missing"),
        ({"file_name": "../../secret"}, "is missing"),
        ({"Level": 4}, "level 4 is unknown"),
        ({"Final answer": "?"}, "the answers are not there"),
        ({"Question": ""}, "a task has no 'Question'"),
    ],
)
def test_bad_rows_are_refused(change: dict[str, Any], message: str, folder: Path, ctx: Any) -> None:
    file = folder / "2023/validation/metadata.jsonl"
    first, *others = file.read_text().splitlines()
    file.write_text("\n".join([json.dumps(json.loads(first) | change), *others]) + "\n")
    with pytest.raises(DatasetError, match=message):
        Gaia(path=str(folder)).tasks(ctx)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metadata.parquet", b"version https://git-lfs.github.com/spec/v1", "cannot be read"),
        ("metadata.jsonl", b"\xff\xfe", "cannot be read"),
        ("metadata.jsonl", b"[1]\n", "a row is not a task"),
    ],
)
def test_bad_files_are_refused(name: str, content: bytes, message: str, tmp_path: Path, ctx: Any) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        Gaia(path=str(tmp_path)).tasks(ctx)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--levels", "4"], "has no level '4'; there are: 1, 2, 3"),
        (["--set", "mode=live"], "there is no key for brave"),
    ],
)
def test_bad_settings_are_refused(
    words: list[str], message: str, folder: Path, rlhf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BRAVE_API_KEY", raising=False)
    done = rlhf("eval", "gaia", "--data", str(folder), "--backend", "scripted", *words)
    assert done.code == 2
    assert all(part in done.err.replace("\n", " ") for part in message.split("; "))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of downloads, empty, without a token."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    return tmp_path / "cache"


def test_the_hubs_copy_is_read_and_gated_data_want_a_token(
    folder: Path, hub: Path, ctx: Any, rlhf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = rlhf("eval", "gaia", "--backend", "scripted")
    assert done.code == 2
    assert "is gated, and there is no token" in done.err
    copy = hub / "datasets--gaia-benchmark--GAIA"
    (copy / "refs").mkdir(parents=True)
    (copy / "refs" / "main").write_text("abc")
    (copy / "snapshots").mkdir()
    folder.rename(copy / "snapshots" / "abc")
    assert [t.id for t in Gaia().tasks(ctx)] == ["t1", "t2", "t3", "t4"]
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    whole: list[bool] = []

    def download(name: str, local_files_only: bool = False, **wanted: Any) -> str:
        whole.append(not local_files_only)
        return str(copy / "snapshots" / "abc")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert len(Gaia().tasks(ctx)) == 4
    assert whole[-1], "a copy may be incomplete: with a token, what is missing is fetched"


def test_parquet_and_a_folder_without_tasks(folder: Path, tmp_path: Path, ctx: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    file = folder / "2023/validation/metadata.jsonl"
    rows = [{k: str(v) for k, v in json.loads(line).items()} for line in file.read_text().splitlines()]
    parquet.write_table(pa.Table.from_pylist(rows), file.with_suffix(".parquet"))
    file.unlink()
    assert [t.level for t in Gaia(path=str(folder)).tasks(ctx)] == [1, 1, 2, 3]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="there is no metadata"):
        Gaia(path=str(tmp_path / "empty")).tasks(ctx)


@pytest.fixture
def service() -> Any:
    """A stand-in of the three interfaces, which remembers what it was asked."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["X-Subscription-Token"]))
            self._answer({"web": {"results": [{"title": "T", "url": "u", "description": "D"}] * 9}})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            serper = self.headers["X-API-KEY"]
            asked.append((body, serper or self.headers["Authorization"]))
            page = {"title": "T", "link": "u", "snippet": "S"} if serper else {"title": "T", "url": "u", "content": "C"}
            self._answer({"organic" if serper else "results": [page]})

        def _answer(self, value: Any) -> None:
            self.send_response(429 if "busy" in str(asked[-1]) else 200)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_live_mode_searches_by_key(
    folder: Path, service: tuple[str, Any], ctx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = service
    monkeypatch.setenv("BRAVE_API_KEY", "k-brave")
    monkeypatch.setenv("TAVILY_API_KEY", "k-tavily")
    suite: Callable[..., Any] = lambda **s: ctx.registry.config("benchmark", "gaia", {"path": str(folder), **s})  # noqa: E731
    live = suite(mode="live", search={"url": url, "results": 2}).tasks(ctx)[0].open(0).box
    assert live.call(ToolCall("web_search", {"query": "a b"})).result == "[1] T (u): D\n[2] T (u): D"
    assert asked[-1] == ("/?q=a+b&count=2", "k-brave")
    tavily = suite(mode="live", search={"url": url, "service": "tavily"}).tasks(ctx)[0].open(0).box
    assert tavily.call(ToolCall("web_search", {"query": "a"})).result == "[1] T (u): C"
    assert (json.loads(asked[-1][0])["max_results"], asked[-1][1]) == (5, "Bearer k-tavily")
    monkeypatch.setenv("SERPER_API_KEY", "k-serper")
    mini = AgentBenchMini(mode="live", search=WebSearchConfig(url=url, service="serper")).tasks(ctx)[0].open(0).box
    assert mini.call(ToolCall("web_search", {"query": "a"})).result == "[1] T (u): S"
    assert (json.loads(asked[-1][0]), asked[-1][1]) == ({"q": "a", "num": 5}, "k-serper")
    assert "web_search" not in str(AgentBenchMini().tasks(ctx)[0].open(0).box.specs)
    monkeypatch.setattr("rlhf_plugin_agents.tools.web.WAITS_S", (0.0,))
    before = len(asked)
    with pytest.raises(BackendFault, match="429 Too Many Requests"):  # the task has no score
        tavily.call(ToolCall("web_search", {"query": "busy"}))
    assert len(asked) == before + 2
    assert "web_search" not in str(suite().tasks(ctx)[0].open(0).box.specs)
    monkeypatch.delenv("BRAVE_API_KEY")
    with pytest.raises(ConfigError, match="no key for brave"):
        suite(mode="live").tasks(ctx)

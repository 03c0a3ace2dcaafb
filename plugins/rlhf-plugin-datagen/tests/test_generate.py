"""Each kind from prompts to a usable file: the pocket model or a rule writes, a rule judges; kills and bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.registry import Registry
from rlhf_core.runs.jsonl import read_jsonl
from rlhf_plugin_datagen.outside import open_datasets

Command = Callable[..., tuple[int, str]]
pytestmark = pytest.mark.usefixtures("rule_judge")
RULES = "--judge", "rule", "--generator", "rule"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write(tmp_path / "asked.jsonl", [{"id": str(i), "prompt": f"Question {i}?"} for i in range(12)])


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path))


def left_out(path: Path) -> list[dict[str, Any]]:
    return rows(path.with_name(path.name + ".left_out.jsonl"))


@pytest.mark.slow
def test_preferences_of_the_pocket_model_are_pairs_to_train_on(tmp_path: Path, command: Command) -> None:
    out = tmp_path / "made.jsonl"
    code, err = command(
        "data",
        "generate",
        "preferences",
        "--model",
        "pocket",
        "--judge",
        "rule",
        "--count",
        12,
        "--max-tokens",
        48,
        "--output",
        out,
    )
    assert code == 0, err
    found, out_of_use = rows(out), left_out(out)
    assert len(found) + len(out_of_use) == 12
    assert {r["left_out"] for r in out_of_use} <= {"identical_responses", "tie", "empty_response", "cut_off"}
    assert len(found) > 4
    assert all(len(r["chosen"]) < len(r["rejected"]) and r["why"] == "principle 6" for r in found)
    pairs = open_datasets(Registry(), str(out), heldout_fraction=0.0).pairs("train")
    assert {p.id.removeprefix("made/"): p.chosen for p in pairs} == {r["id"]: r["chosen"] for r in found}


def test_demonstrations_are_the_revision_of_the_draft(prompts: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "sft.jsonl"
    code, err = command("data", "generate", "sft", "--judge", "rule", "--dataset", prompts, "--output", out)
    assert code == 0, err
    found = rows(out)
    assert len(found) == 12
    assert all(r["completion"] == r["draft"].upper() and r["critique"] == "Louder." for r in found)
    assert found[0]["usage"] == {
        "requests": 3,
        "cached": 0,
        "input_tokens": 300,
        "output_tokens": 30,
        "cost_usd": pytest.approx(0.00045),
    }


RUBRIC = (
    "- {name: short, question: 'Is it short?', scale: [1, 5], weight: 3}\n"
    "- {name: kind, question: 'Is it kind?', scale: [1, 5]}\n"
)


def test_grades_of_given_responses(tmp_path: Path, command: Command) -> None:
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    source = write(tmp_path / "said.jsonl", [{"prompt": "Hi?", "completion": text} for text in ("Hi.", "a b c d e")])
    out = tmp_path / "graded.jsonl"
    arguments = ("data", "generate", "grades", "--judge", "rule", "--dataset", source, "--output", out)
    code, err = command(*arguments, "--rubric", tmp_path / "rubric.yaml")
    assert code == 0, err
    assert [(r["completion"], r["grades"], r["score"]) for r in rows(out)] == [
        ("Hi.", {"short": 5, "kind": 3}, pytest.approx((3 * 1 + 0.5) / 4)),
        ("a b c d e", {"short": 1, "kind": 3}, pytest.approx(0.5 / 4)),
    ]
    settings = json.loads((tmp_path / "graded.jsonl.settings.json").read_text())
    assert settings["generator"] == settings["judge"]  # the pocket model, which has nothing to write, is not loaded
    code, err = command(*arguments)
    assert code == 2
    assert "other settings" in err
    assert "rubric" in err


@pytest.mark.parametrize("use", ["rule", "prose"])
def test_grades_of_other_responses_under_the_same_ids_are_not_gone_on_with(
    use: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    out, source = tmp_path / "graded.jsonl", tmp_path / "said.jsonl"
    arguments = (
        "data",
        "generate",
        "grades",
        "--judge",
        "rule",
        "--set",
        f"manner={use}",
        "--dataset",
        source,
        "--rubric",
        tmp_path / "rubric.yaml",
        "--output",
        out,
    )
    write(source, [{"prompt": "Hi?", "completion": text} for text in ("Hi.", "a b c d e")])
    assert command(*arguments)[0] == 0
    before = (rows(out), left_out(out))
    assert command(*arguments)[0] == 0
    write(source, [{"prompt": "Hi?", "completion": text} for text in ("Hi.", "of a newer policy")])
    code, err = command(*arguments)
    assert (code, "another response for id" in err) == (2, True), err
    assert (rows(out), left_out(out)) == before


def test_given_responses_are_not_written_anew_because_the_first_row_has_none(tmp_path: Path, command: Command) -> None:
    source = write(tmp_path / "said.jsonl", [{"prompt": "Hi?"}, {"prompt": "Ho?", "completion": "Hi."}])
    code, err = command("data", "generate", "grades", *RULES, "--dataset", source, "--output", tmp_path / "out.jsonl")
    assert code == 2
    assert "said.jsonl" in err
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.slow
def test_grades_are_rows_for_the_rubric_model(tmp_path: Path, command: Command) -> None:
    from rlhf_plugin_rubric.graded import read_rows
    from rlhf_plugin_rubric.rubric import load_rubric

    rubric, out = tmp_path / "rubric.yaml", tmp_path / "graded.jsonl"
    rubric.write_text(RUBRIC)
    source = write(tmp_path / "said.jsonl", [{"prompt": "Hi?", "completion": text} for text in ("Hi.", "a b c d e")])
    code, err = command(
        "data", "generate", "grades", "--judge", "rule", "--dataset", source, "--rubric", rubric, "--output", out
    )
    assert code == 0, err
    datasets = open_datasets(Registry(), str(out), heldout_fraction=0.0)
    learned = read_rows(datasets, "train", load_rubric(str(rubric)), Counter())
    assert {g.completion: g.grades_K for g in learned} == {"Hi.": (1.0, 0.5), "a b c d e": (0.0, 0.5)}


@pytest.mark.parametrize(
    ("kind", "manner", "reason", "words"),
    [
        ("preferences", "first", "order_decides", "swapped"),
        ("preferences", "prose", "judge_unusable", "no JSON object"),
        ("grades", "prose", "judge_unusable", "no JSON object"),
        ("grades", "rule", "judge_unusable", "no grade for helpfulness"),
    ],
)
def test_verdicts_of_no_use_are_left_out_once_and_for_all(
    kind: str, manner: str, reason: str, words: str, prompts: Path, tmp_path: Path, command: Command
) -> None:
    log, out = tmp_path / "log", tmp_path / "out.jsonl"
    for _ in range(2):
        code, err = command(
            "data",
            "generate",
            kind,
            "--dataset",
            prompts,
            "--count",
            4,
            *RULES,
            "--set",
            f"manner={manner}",
            "--set",
            f"log={log}",
            "--output",
            out,
        )
        assert code == 0, err
        assert not rows(out)
        found = [r for r in left_out(out) if r["left_out"] != "identical_responses"]
        assert found
        assert {r["left_out"] for r in found} == {reason}
        assert all(words in r["detail"] for r in found)
    asked = log.read_text().splitlines()
    assert len(asked) == len(set(asked))  # the second call asked nothing again


@pytest.mark.parametrize("kind", ["preferences", "sft", "grades"])
def test_a_text_that_ends_at_the_token_limit_is_no_example(
    kind: str, prompts: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "out.jsonl"
    code, err = command(
        "data", "generate", kind, "--dataset", prompts, "--count", 4, *RULES, "--output", out, "--max-tokens", 10
    )  # as long as every answer of the rule
    assert code == 0, err
    assert not rows(out)
    assert {r["left_out"] for r in left_out(out)} - {"identical_responses"} == {"cut_off"}


def test_off_the_scale_is_refused_and_prose_is_mended(prompts: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    shared = ("--dataset", prompts, "--generator", "rule", "--judge", "rule")
    out = tmp_path / "grades.jsonl"
    command(
        "data",
        "generate",
        "grades",
        *shared,
        "--set",
        "manner=off_scale",
        "--rubric",
        tmp_path / "rubric.yaml",
        "--output",
        out,
    )
    assert any("outside its scale from 1 to 5" in r["detail"] for r in left_out(out))
    assert all(r["grades"]["short"] == 1 for r in rows(out))
    mended = tmp_path / "mended.jsonl"
    code, err = command("data", "generate", "preferences", *shared, "--set", "manner=mends", "--output", mended)
    assert code == 0, err
    assert rows(mended)
    assert rows(mended)[0]["usage"]["requests"] == 6  # two responses, two questions, each asked again


def test_what_got_no_answer_is_asked_again_by_the_same_command(prompts: Path, tmp_path: Path, command: Command) -> None:
    out, down, log = tmp_path / "sft.jsonl", tmp_path / "down.jsonl", tmp_path / "log"
    arguments = ("data", "generate", "sft", "--judge", "rule", "--dataset", prompts, "--set", f"log={log}")
    flaky = (*arguments, "--set", "manner=flaky", "--output", out)
    code, err = command(*flaky)
    assert code == 1
    assert "stopped" not in err  # the others of the batch were answered
    assert {r["id"] for r in rows(out)} == {f"asked/{i}" for i in range(12)} - {"asked/3"}
    (tmp_path / "log.up").touch()
    code, err = command(*flaky)
    assert code == 0, err
    assert sorted(r["id"] for r in rows(out)) == sorted(f"asked/{i}" for i in range(12))
    code, err = command(*arguments, "--set", "manner=down", "--batch-size", 4, "--output", down)
    assert code == 1
    assert "stopped: nothing of this batch was answered; first: timeout: no answer in 1 s" in err
    assert not rows(down)


def test_a_refusal_that_was_billed_is_an_answer(prompts: Path, tmp_path: Path, command: Command) -> None:
    out, log = tmp_path / "pairs.jsonl", tmp_path / "log"
    arguments = (
        "data",
        "generate",
        "preferences",
        *RULES,
        "--generator-set",
        "manner=refuses",
        "--generator-set",
        f"log={log}",
        "--dataset",
        prompts,
        "--output",
        out,
    )
    for _ in range(2):
        code, err = command(*arguments)
        assert code == 0, err
    assert {r["left_out"] for r in left_out(out)} == {"empty_response"}
    assert left_out(out)[0]["usage"]["cost_usd"] == pytest.approx(2 * 0.00015)
    assert len(log.read_text().splitlines()) == 2 * 12  # asked once


def test_prompts_that_cannot_be_answered_do_not_keep_those_after_them_from_it(
    prompts: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "sft.jsonl"
    code, err = command(
        "data",
        "generate",
        "sft",
        "--judge",
        "rule",
        "--set",
        "manner=beyond:8",
        "--dataset",
        prompts,
        "--batch-size",
        4,
        "--output",
        out,
    )
    assert code == 1
    assert "stopped" not in err
    assert [r["id"] for r in rows(out)] == [f"asked/{i}" for i in range(8, 12)]


def test_errors_without_end_stop_the_command(tmp_path: Path, command: Command) -> None:
    asked = write(tmp_path / "many.jsonl", [{"id": str(i), "prompt": f"Question {i}?"} for i in range(200)])
    log = tmp_path / "log"
    code, err = command(
        "data",
        "generate",
        "sft",
        "--judge",
        "rule",
        "--set",
        "manner=beyond:1000",
        "--set",
        f"log={log}",
        "--dataset",
        asked,
        "--output",
        tmp_path / "sft.jsonl",
    )
    assert code == 1
    assert "stopped: nothing of this batch was answered; first: error: the question is too long" in err
    assert len(log.read_text().splitlines()) == 64


def test_a_judge_that_a_hook_registers_can_be_asked(
    rule_judge: Path, prompts: Path, tmp_path: Path, command: Command
) -> None:
    info = rule_judge / "late_judge-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: late-judge\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf]\nfinder = late_judge_for_tests:hooks\n")
    (rule_judge / "late_judge_for_tests.py").write_text(
        "from rlhf_core.api import hookimpl\nclass Hooks:\n    @hookimpl\n    def rlhf_register(self, registry):\n"
        "        registry.add('judge', 'late', 'acme_judge_for_tests:RuleConfig', distribution='late-judge')\n"
        "hooks = Hooks()\n"
    )
    code, err = command(
        "data", "generate", "sft", "--judge", "late", "--dataset", prompts, "--output", tmp_path / "sft.jsonl"
    )
    assert code == 0, err


def test_the_dry_run_prints_the_cost_and_asks_nothing(
    prompts: Path, tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlhf_core.cli.main import main

    out, log = tmp_path / "new" / "pairs.jsonl", tmp_path / "log"
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "data",
                "generate",
                "preferences",
                "--judge",
                "rule",
                "--set",
                f"log={log}",
                "--dataset",
                str(prompts),
                "--output",
                str(out),
                "--judge-tokens",
                "100",
                "--dry-run",
                "--json",
            ]
        )
    assert ended.value.code in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["judge"]["requests"], found["judge"]["output_tokens"]) == (48, 24, 2400)
    assert found["generator"]["cost_usd"] == 0.0  # a model of one's own
    assert found["cost_usd"] == pytest.approx((found["judge"]["input_tokens"] + 5 * 2400) / 1e6)
    assert found["judge"]["input_tokens"] > 24 * 256
    assert not out.parent.exists()
    assert not log.exists()


def test_a_service_is_priced_without_a_key_and_refused_without_one(
    prompts: Path, tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlhf_core.cli.main import main

    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    out = tmp_path / "new.jsonl"
    arguments = ["data", "generate", "sft", "--judge", "anthropic", "--dataset", str(prompts), "--output", str(out)]
    with pytest.raises(SystemExit):
        main([*arguments, "--dry-run", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["judge"]["asked"].startswith("anthropic (claude")
    assert found["cost_usd"] > 0.01
    with pytest.raises(SystemExit):
        main([*arguments, "--set", "batches=true", "--dry-run", "--json"])
    assert json.loads(capsys.readouterr().out)["cost_usd"] == pytest.approx(found["cost_usd"] / 2, rel=1e-4)
    code, err = command(*arguments)
    assert code == 2
    assert "ANTHROPIC_API_KEY" in err or "pip install" in err
    assert not out.exists()


def ended(arguments: list[str], kill_after: float | None) -> int:
    """Run the command in a process of its own, or kill it (SIGKILL) after some seconds of its work."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rlhf_core.cli.main", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    if kill_after is not None:
        process.stderr.readline()  # the estimate
        process.stderr.readline()  # the first batch is written
        time.sleep(kill_after)
        os.kill(process.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert kill_after is not None or process.returncode == 0, err
    return process.returncode


@pytest.mark.slow
def test_kill_9_loses_no_row_and_makes_none_twice(prompts: Path, tmp_path: Path, command: Command) -> None:
    shared = ["--dataset", str(prompts), *RULES, "--batch-size", "1"]
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    assert command("data", "generate", "preferences", *shared, "--output", whole)[0] == 0
    slow = [
        "data",
        "generate",
        "preferences",
        *shared,
        "--set",
        "delay_s=0.05",
        "--set",
        "manner=rule",
        "--output",
        str(killed),
    ]
    assert [ended(slow, 0.02 * n) for n in (1, 4)] == [-9, -9]
    with killed.open("a") as file:
        file.write('{"id": "asked/99", "prompt": [{"ro')  # what a kill inside a write leaves
    ended(slow, None)
    assert len(rows(killed)) + len(left_out(killed)) == 12
    for read in (rows, left_out):
        assert {r["id"]: r for r in read(killed)} == {r["id"]: r for r in read(whole)}
        assert len({r["id"] for r in read(killed)}) == len(read(killed))


def test_a_second_process_and_foreign_files_are_refused(prompts: Path, tmp_path: Path, command: Command) -> None:
    from rlhf_plugin_datagen.store import Store

    out = tmp_path / "out.jsonl"
    arguments = ("data", "generate", "sft", "--judge", "rule", "--dataset", prompts, "--output")
    store = Store(out, {})
    code, err = command(*arguments, out)
    store.close()
    assert (code, "another process" in err) == (2, True)
    code, err = command(*arguments, write(tmp_path / "mine.jsonl", [{"id": "a"}]))
    assert (code, "not written by this command" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("prefs", *RULES), "no kind of data 'prefs'"),
        (("preferences",), "nobody is to judge"),
        (("grades", "--judge", "ruel"), "did you mean 'rule'"),
        (("grades", "--judge", "rule", "--set", "maner=x"), "did you mean 'manner'"),
        (("preferences", *RULES, "--model", "pocket"), "both given"),
        (("grades", *RULES, "--rubric", "{twice}"), "have the name 'a'"),
        (("grades", *RULES, "--rubric", "{none}"), "has no criteria"),
        (("grades", *RULES, "--rubric", "{scale}"), "the scale from 5 to 1 is empty"),
        (("grades", *RULES, "--rubric", "nowhere.yaml"), "there is no rubric"),
        (("sft", *RULES, "--constitution", "{same}"), "the principle 'be kind.' twice"),
        (("sft", *RULES, "--constitution", "{none}"), "holds no principles"),
        (("sft", *RULES, "--dataset", "nowhere.jsonl"), "does not exist"),
    ],
)
def test_bad_input_is_refused_before_anything_is_asked(
    options: tuple[str, ...], words: str, tmp_path: Path, command: Command
) -> None:
    files = {
        "twice": "- {name: a, question: b}\n- {name: a, question: c}\n",
        "none": "[]",
        "scale": "- {name: a, question: b, scale: [5, 1]}",
        "same": "- Be kind.\n- be  kind.\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    given = [o.replace("{", f"{tmp_path}/").replace("}", "") if o.startswith("{") else o for o in options]
    code, err = command("data", "generate", *given, "--output", tmp_path / "new.jsonl")
    assert code == 2, err
    assert words in err
    assert not (tmp_path / "new.jsonl").exists()

"""The options of `rlhf data generate`: what a dry run prints, which judges can be named, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str]]
pytestmark = pytest.mark.usefixtures("rule_judge")
RULES = "--judge", "rule", "--generator", "rule"


def test_a_judge_that_a_hook_registers_can_be_asked(
    rule_judge: Path, prompts: Path, tmp_path: Path, command: Command
) -> None:
    info = rule_judge / "late_judge-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: late-judge\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf]\nfinder = late_judge_for_tests:hooks\n")
    (rule_judge / "late_judge_for_tests.py").write_text(
        "from rlhf_core.hooks import hookimpl\nclass Hooks:\n    @hookimpl\n    def rlhf_register(self, registry):\n"
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
    estimate = json.loads(capsys.readouterr().out)
    assert (estimate["requests"], estimate["judge"]["requests"], estimate["judge"]["output_tokens"]) == (48, 24, 2400)
    assert estimate["generator"]["cost_usd"] == 0.0  # a model of one's own
    assert estimate["cost_usd"] == pytest.approx((estimate["judge"]["input_tokens"] + 5 * 2400) / 1e6)
    assert estimate["judge"]["input_tokens"] > 24 * 256
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
    estimate = json.loads(capsys.readouterr().out)
    assert estimate["judge"]["asked"].startswith("anthropic (claude")
    assert estimate["cost_usd"] > 0.01
    with pytest.raises(SystemExit):
        main([*arguments, "--set", "batches=true", "--dry-run", "--json"])
    assert json.loads(capsys.readouterr().out)["cost_usd"] == pytest.approx(estimate["cost_usd"] / 2, rel=1e-4)
    code, err = command(*arguments)
    assert code == 2
    assert "ANTHROPIC_API_KEY" in err or "pip install" in err
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("prefs", *RULES), "no kind of data 'prefs'"),
        (("preferences",), "no judge is named"),
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
    arguments = [o.replace("{", f"{tmp_path}/").replace("}", "") if o.startswith("{") else o for o in options]
    code, err = command("data", "generate", *arguments, "--output", tmp_path / "new.jsonl")
    assert code == 2, err
    assert words in err
    assert not (tmp_path / "new.jsonl").exists()

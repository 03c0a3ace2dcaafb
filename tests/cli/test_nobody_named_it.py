"""Once a config file is given, a model, data set or reward that nobody names is not used without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.config.load import resolve_labelled
from rlhf_core.plugins.registry import Registry
from rlhf_plugin_preflight.hooks import unnamed

MODEL, DATA, REWARD = "model (pocket is used)", "data set (pocket is used)", "reward (ensemble is used)"


@pytest.mark.parametrize(
    ("text", "sugar", "expected"),
    [
        ("trainer: {name: grpo, steps: 3}", {}, [MODEL, DATA, REWARD]),
        ("trainer: {name: sft}", {}, [MODEL, DATA]),
        ("trainer: {name: sft}\nmodel: {path: pocket}", {"dataset": {"name": "pocket"}}, []),
        ("trainer: {name: grpo}\ndataset: rows.jsonl", {"reward": {"name": "random"}}, [MODEL]),
        ("trainer: {name: grpo}\nenvironment: {name: lookup}", {}, []),
        (None, {"trainer": {"name": "grpo"}}, []),
    ],
)
def test_what_nobody_named(tmp_path: Path, text: str | None, sugar: dict[str, object], expected: list[str]) -> None:
    files = []
    if text is not None:
        files = [tmp_path / "run.yaml"]
        files[0].write_text(text)
    assert unnamed(resolve_labelled(Registry(), files=files, sugar=sugar)) == expected


def test_a_run_says_it(tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    from rlhf_core.cli.main import main

    (tmp_path / "run.yaml").write_text("trainer: {name: sft, max_steps: 1}\n")
    with pytest.raises(SystemExit) as done:
        main(["train", "--config", str(tmp_path / "run.yaml"), "--dry-run"])
    assert done.value.code == 0
    assert "no config file names the model (pocket is used), the data set" in caplog.text + capsys.readouterr().err

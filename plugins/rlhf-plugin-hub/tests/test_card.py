"""The model card of a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.config.plan import Plan
from rlhf_core.models.sources import resolve_model
from rlhf_core.runs import StoredRun
from rlhf_plugin_hub.card import base_on_hub, fenced, inline, model_card, shortened


def stored(plan: Plan, summary: dict[str, Any]) -> StoredRun:
    return StoredRun(Path("run"), plan, summary, None, (), ())


def front(text: str) -> dict[str, Any]:
    head = text.split("---\n")
    assert head[0] == ""
    return yaml.safe_load(head[1])


def test_a_run_has_a_card(rlhf: Callable[..., Any], tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    lora_run = tmp_path / "run"
    shutil.copytree(resolve_model("pocket").path, tmp_path / "base")
    sizes = ("max_steps=2", "batch_size=4", "eval_samples=2", "optimizer.learning_rate=0.01")
    settings = [word for text in sizes for word in ("--set", f"trainer.{text}")]
    args = ["--algo", "sft", "--model", tmp_path / "base", "--set", "model.lora.r=2", "--set", "dataset.limit=16"]
    ran = rlhf("train", *args, *settings, "--run-dir", lora_run)
    assert ran.code == 0, ran.err
    card = ModelCard.load(lora_run / "final" / "README.md")
    data = card.data.to_dict()
    assert data["library_name"] == "transformers"
    assert data["license"] == "unknown"
    assert data["tags"] == ["rlhf", "sft", "lora"]
    assert "base_model" not in data, "a folder is no hub id"
    for part in (
        "## Data",
        "rlhf train --config config.yaml",
        "eval/",
        "## Intended use and limits",
        "torch ",
        "Seed 0",
    ):
        assert part in card.text, part
    assert 'FOLDER + "/adapter"' in card.text
    config = card.text.split("```yaml\n")[1].split("\n```")[0]
    planned = json.loads((lora_run / "plan.json").read_text())["config"]
    assert yaml.safe_load(config) == {**planned, "model": {**planned["model"], "path": ".../base"}}
    assert str(lora_run.parent) not in card.text, "nobody else is told where this machine keeps its files"


def test_what_others_see_of_a_path_is_its_end() -> None:
    given = ["/srv/ada/sft/final", "~/a.jsonl", "/data/secret/a.jsonl", "C:\\ada\\a.jsonl", "https://ada:pw@host/v1"]
    cut = [".../sft/final", ".../a.jsonl", ".../a.jsonl", ".../a.jsonl", "https://***@host/v1"]
    assert shortened({"x": given}) == {"x": cut}
    kept = ["org/model", "runs/sft", "pocket/assistant", "</s>", "/no_think", "a /b/c", "/ or / and", 1, None]
    assert shortened(kept) == kept


EVIL = "x\n---\nlicense: mit\n```\n# Owned <script>alert(1)</script> | `a`"


def test_no_text_of_the_data_gets_out_of_its_place(tmp_path: Path) -> None:
    source = {"source": {"name": "jsonl", "path": EVIL}}
    config = {"model": {"path": EVIL}, "trainer": {"name": EVIL}, "dataset": {"sources": [source]}, "reward": None}
    plan = Plan(config, (), {}, 0, 1, rows={EVIL: {"train": 3}})
    text = model_card(
        tmp_path, stored(plan, {"status": "completed", "dropped": {EVIL: 2}, "evaluation_after": {EVIL: 1.0}})
    )
    assert front(text)["license"] == "unknown"
    assert front(text)["tags"][1] == " ".join(EVIL.split())
    lines = text.split("---\n", 2)[2].splitlines()
    headings = [line for line in lines if line.startswith("#")]
    assert all(line.startswith(("# `x", "## ")) for line in headings), headings
    assert not any(line.startswith("license: mit") for line in lines)
    for line in lines:
        if "<script>" in line and not line.startswith(" "):
            assert line.count("`") % 2 == 0, line


def test_names_and_blocks_stay_what_they_are() -> None:
    assert inline(EVIL).count("`") == 2
    assert "\n" not in inline(EVIL)
    assert fenced("a\n````\nb", "yaml").startswith("`````yaml\n")


def test_the_base_is_followed_through_runs_to_the_hub(tmp_path: Path) -> None:
    def run(name: str, model: str) -> Path:
        (tmp_path / name / "final").mkdir(parents=True)
        (tmp_path / name / "plan.json").write_text(json.dumps({"config": {"model": {"path": model}}}))
        return tmp_path / name / "final"

    first = run("sft", "org/base")
    assert base_on_hub(str(run("grpo", str(first)))) == "org/base"
    assert base_on_hub("org/base") == "org/base"
    assert base_on_hub("pocket") is None
    assert base_on_hub(str(run("loop", str(tmp_path / "loop" / "final")))) is None


def test_a_filtered_data_set_is_named_as_what_it_filters(tmp_path: Path) -> None:
    source = {"name": "where", "of": {"name": "hub", "path": "org/rows", "split": "train"}, "expression": "level > 3"}
    trainer, model = {"name": "sft"}, {"path": "org/base"}
    config = {"model": model, "trainer": trainer, "dataset": {"sources": [{"source": source}]}}
    run = stored(Plan(config, (), {}, 0, 1), {})
    text = model_card(tmp_path, run)
    assert (front(text)["datasets"], run.datasets) == (["org/rows"], "hub/org/rows")
    assert "- `hub` `org/rows` `train`" in text


def test_a_reward_model_says_that_it_is_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForSequenceClassification"]}')
    config = {"model": {"path": "org/base"}, "trainer": {"name": "reward_model"}, "dataset": {"sources": []}}
    text = model_card(tmp_path, stored(Plan(config, (), {}, 0, 1), {}))
    assert front(text)["pipeline_tag"] == "text-classification"
    assert front(text)["base_model"] == "org/base"
    assert "AutoModelForSequenceClassification" in text

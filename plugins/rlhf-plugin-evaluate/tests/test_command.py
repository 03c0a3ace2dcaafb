"""`rlhf eval policies` on the pocket model: rows, figures, going on after a kill, and bad input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rlhf_core.config import BuildContext, ComponentConfig, Registry
from rlhf_core.data import read_jsonl
from rlhf_core.models import ModelConfig, load_policy
from rlhf_core.models.save import save_model
from rlhf_core.rewards import JudgeReply, JudgeRequest
from rlhf_plugin_evaluate.comparison import fingerprints as fingerprints_of
from rlhf_plugin_judge.config import LocalConfig

Run = Callable[..., tuple[int, str, str]]


class ShorterConfig(ComponentConfig):
    """A judge that prefers the shorter response, and A if both are equally long."""

    name: str = "shorter"

    def build(self, ctx: BuildContext) -> Shorter:
        return Shorter()


class Shorter:
    def ask(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        def one(text: str) -> JudgeReply:
            tags = (f"{name}-{text.split()[1]}" for name in ("response_a", "response_b"))
            a, b = (text.split(f"<{tag}>\n")[1].split(f"\n</{tag}>")[0] for tag in tags)
            return JudgeReply(json.dumps({"better": "B" if len(b) < len(a) else "A"}), cost_usd=0.01)

        return [one(r.messages[-1]["content"]) for r in requests]


sys.modules["evaluate_shorter"] = sys.modules[__name__]  # an entry point names a module, and this one's has hyphens


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("--policy", ...)``: the command, its output apart from progress; returns (code, out, err)."""
    from rlhf_core.cli.main import main

    monkeypatch.chdir(tmp_path)
    begin = Registry.__init__

    def with_judge(self: Registry, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self.add("judge", "shorter", "evaluate_shorter:ShorterConfig", distribution="pytest")

    monkeypatch.setattr(Registry, "__init__", with_judge)

    def call(*args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["eval", "policies", *map(str, args)])
        text = capsys.readouterr()
        return int(caught.value.code or 0), text.out, text.err

    return call


@pytest.fixture
def nudged(tmp_path: Path) -> Path:
    """The pocket model with a little noise on its weights."""
    import torch

    policy = load_policy(ModelConfig())
    torch.manual_seed(0)
    weights = {
        k: v + 0.02 * v.std() * torch.randn_like(v) if v.ndim > 1 else v for k, v in policy.model.state_dict().items()
    }
    folder = tmp_path / "nudged"
    folder.mkdir()
    save_model(policy.model, policy.tokenizer, folder, weights)
    return folder


COMMON = ("--baseline", "pocket", "--prompts", 24, "--max-tokens", 16, "--out", "out")


@pytest.mark.slow
def test_rows_figures_and_going_on(run: Run, nudged: Path, tmp_path: Path) -> None:
    command = (*COMMON, "--policy", f"other={nudged}", "--policy", "same=pocket", "--judge", "shorter")
    code, out, err = run(*command)
    assert code == 0, err
    assert "win rate by gold" in out
    assert "length-controlled" in out
    file = tmp_path / "out" / "result.json"
    result = json.loads(file.read_text())["policies"]
    same, other = result["same"], result["other"]
    assert same["wins"]["gold"]["win_rate"]["rate"] == 0.5
    assert same["kl"]["per_token"] == pytest.approx(0, abs=1e-5)
    assert same["judge"]["same_text"] == 24
    assert 0 < other["kl"]["per_sequence"] < 5
    gain = other["gold"]["value"] - result["baseline"]["gold"]["value"]
    assert other["per_nat"]["value"] == pytest.approx(gain / other["kl"]["per_sequence"])
    assert "gain/nat" in out
    assert (tmp_path / "out" / "frontier.svg").is_file()
    assert (tmp_path / "out" / "responses.md").read_text().count("**other**") == 20
    rows = {n: list(read_jsonl(tmp_path / "out" / f"responses-{n}.jsonl")) for n in ("baseline", "other", "same")}
    assert other["tokens"] == sum(r["tokens"] for r in rows["other"]) / 24
    golds = [(a["gold"]["value"], b["gold"]["value"]) for a, b in zip(rows["other"], rows["baseline"])]
    rate = sum(1.0 if a > b + 1e-9 else 0.5 if abs(a - b) < 1e-9 else 0 for a, b in golds) / 24
    assert other["wins"]["gold"]["win_rate"]["rate"] == pytest.approx(rate)
    shorter = [(len(a["completion"]), len(b["completion"])) for a, b in zip(rows["other"], rows["baseline"])]
    rate = sum(1.0 if a < b else 0.5 if a == b else 0 for a, b in shorter) / 24
    assert other["wins"]["judge"]["win_rate"]["rate"] == pytest.approx(rate), "a tie in length is A, A: half"

    before = file.read_text()
    cut = tmp_path / "out" / "responses-other.jsonl"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 9 // 10])  # as a kill leaves it, within a row
    file.unlink()
    assert run(*command)[0] == 0
    again = json.loads(file.read_text())["policies"]["other"]
    for key in ("wins", "gold", "tokens"):
        assert again[key] == other[key]
    assert again["kl"]["per_token"] == pytest.approx(other["kl"]["per_token"], rel=1e-4)
    assert before.count("\n") == file.read_text().count("\n")


@pytest.mark.slow
def test_a_reward_scores_and_a_run_folder_is_its_final_model(run: Run, tmp_path: Path, nudged: Path) -> None:
    (tmp_path / "a-run").mkdir()
    (tmp_path / "a-run" / "plan.json").write_text("{}")
    nudged.rename(tmp_path / "a-run" / "final")
    code, out, err = run(
        "--baseline",
        "pocket",
        "--policy",
        "a-run",
        "--dataset",
        "pocket/arithmetic",
        "--reward",
        "verifier",
        "--prompts",
        8,
        "--max-tokens",
        12,
        "--out",
        "out",
        "--reference",
        "none",
        "--json",
    )
    assert code == 0, err
    figures = json.loads(out)["policies"]["a-run"]
    rows = list(read_jsonl(tmp_path / "out" / "responses-a-run.jsonl"))
    assert figures["reward"]["mean"] == pytest.approx(sum(r["reward"] for r in rows) / 8)
    assert "kl" not in figures
    assert "gold" not in figures["wins"]


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ((), "no policy to compare"),
        (("--policy", "x=pocket", "--policy", "x=pocket"), "two policies are called 'x'"),
        (("--policy", "x=./nowhere"), "there is no model folder './nowhere'"),
        (("--policy", "x=nowhere"), "there is no folder 'nowhere' here"),
        (("--policy", "x=pocket", "--reward", "verifierr"), "did you mean 'verifier'"),
        (("--policy", "x=pocket", "--judge", "shortr"), "did you mean 'shorter'"),
        (("--policy", "x=pocket", "--dataset", "pocket/arithmetic"), "nothing says which response is better"),
        (("--policy", "x=pocket", "--set", "a=1"), "none is named"),
    ],
)
def test_bad_input(run: Run, tmp_path: Path, args: tuple[str, ...], word: str) -> None:
    code, _, err = run(*COMMON, *args)
    assert code == 2
    assert word in err
    assert not (tmp_path / "out").exists()


def test_a_tail_that_is_cut_off_has_no_kl(run: Run, tmp_path: Path) -> None:
    few = ("--prompts", 3, "--max-tokens", 4)
    code, _, err = run("--baseline", "pocket", "--policy", "x=pocket", *few, "--top-p", 0.2, "--out", "out")
    assert code == 0, err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["comparison"]["top_p"], result["comparison"]["reference"]) == (0.2, None)
    assert "kl" not in result["policies"]["baseline"]


def test_other_weights_under_the_same_name_are_refused(run: Run, nudged: Path) -> None:
    """As after a resumed or repeated training: rows of both would be one policy's."""
    command = ("--baseline", "pocket", "--prompts", 2, "--max-tokens", 4, "--out", "out", "--policy", nudged)
    assert run(*command)[0] == 0
    file = nudged / "model.safetensors"
    weights = load_file(file)
    first = next(iter(weights))
    save_file({**weights, first: weights[first] + 0.01}, file, {"format": "pt"})
    code, _, err = run(*command)
    assert code == 2
    assert "holds another comparison" in err
    assert "weights" in err


def test_the_weights_of_rewards_and_judges_count_too(tmp_path: Path) -> None:
    for name in ("model", "judge", "rm"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(name)
    judge = LocalConfig(model=ModelConfig(path=f"{tmp_path}/judge"))
    parts = {"taste": {"reward": {"name": "bradley_terry", "path": f"{tmp_path}/rm"}}, "rules": {"reward": "verifier"}}
    reward = Registry().load("reward", "composite").model_validate({"parts": parts}, context={"registry": Registry()})
    fingerprints = fingerprints_of({"baseline": "pocket", "x": f"{tmp_path}/model"}, None, reward, judge)
    assert list(fingerprints) == [f"{tmp_path}/{name}" for name in ("judge", "model", "rm")]
    assert len(set(fingerprints.values())) == 3


def test_rows_of_another_comparison_are_not_mixed(run: Run, tmp_path: Path) -> None:
    plan = {"seed": 1}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "comparison.json").write_text(json.dumps(plan))
    code, _, err = run(*COMMON, "--policy", "x=pocket")
    assert code == 2
    assert "holds another comparison" in err
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["comparison.json"]

"""`rlhf reward score`: verifiers, reward models and ensembles over the rows of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli import chosen_reward, open_registry
from rlhf_core.data import DatasetError
from rlhf_plugin_reward_eval.responses import number_of

Rlhf = Callable[..., Any]
ROWS = [
    {"id": "a", "prompt": "What is 2 + 3?", "completion": "The answer is 5.", "answer": "5"},
    {"id": "b", "messages": [{"role": "user", "content": "What is 2 + 3?"}], "response": "6", "answer": "5"},
    {"id": "c", "prompt": "What is 2 + 3?", "completion": "", "answer": "5"},
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    return path


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained ensemble's folder."""
    from rlhf_core.cli.main import main

    cache = tmp_path_factory.mktemp("cache")
    args = [
        "train",
        "--algo",
        "grpo",
        "--reward",
        "ensemble",
        "--set",
        "reward.members=2",
        "--set",
        "threads=1",
        "--set",
        "reward.max_pairs=32",
        "--set",
        "reward.heldout_pairs=16",
        "--set",
        "trainer.steps=1",
        "--set",
        "trainer.rollout_batch_size=8",
        "--set",
        "trainer.eval_samples=0",
        "--json",
        "--run-dir",
        str(cache / "run"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLHF_CACHE", str(cache))
        with pytest.raises(SystemExit) as caught:
            main(args)
    assert caught.value.code == 0
    (meta,) = cache.glob("ensembles/*/ensemble.json")
    return meta.parent


def test_verifier(rlhf: Rlhf, rows: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "scored.jsonl"
    out = rlhf(
        "reward", "score", "--reward", "verifier", "--set", "workers=1", "--input", rows, "--json", "--output", output
    )
    assert out.code == 0, out.err
    result = json.loads(out.out)
    assert [r["score"] for r in result["rows"][:2]] == [1.0, 0.0]
    assert result["mean"] == pytest.approx(1 / result["scored"])
    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert written == result["rows"]
    assert written[0]["prompt"] == "What is 2 + 3?"


def test_saved_completions_are_judged_as_if_other_stop_strings_had_ended_them(rlhf: Rlhf, tmp_path: Path) -> None:
    file, output = tmp_path / "rows.jsonl", tmp_path / "scored.jsonl"
    row = {"id": "a", "prompt": "What is 2 + 3?", "answer": "5"}
    texts = ["The answer is 5. Q: 1 + 1? The answer is 2.", "The answer is 5.", "It is 4 Q: [END]"]
    file.write_text("".join(json.dumps({**row, "sample": i, "completion": t}) + "\n" for i, t in enumerate(texts)))
    score = ("reward", "score", "--reward", "verifier", "--set", "workers=1", "--input", file)
    assert json.loads(rlhf(*score, "--json").out)["mean"] == pytest.approx(1 / 3)
    out = rlhf(*score, "--stop", "[END]", "--stop", " Q:", "--output", output)
    assert out.code == 0, out.err
    assert "mean 0.6667 over 3 of 3 rows; 2 completions were cut" in out.out
    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert [r["completion"] for r in written] == ["The answer is 5.", "The answer is 5.", "It is 4"]
    assert [r.get("stop") for r in written] == [" Q:", None, " Q:"]
    assert rlhf(*score, "--stop", " Q:", "--keep-stop", "--output", output).code == 0
    assert json.loads(output.read_text().splitlines()[0])["completion"] == "The answer is 5. Q:"


def test_one_id_for_two_prompts(rlhf: Rlhf, rows: Path) -> None:
    rows.write_text('{"id": 1, "prompt": "x", "completion": "y"}\n{"id": 1, "prompt": "z", "completion": "y"}\n')
    out = rlhf("reward", "score", "--reward", "verifier", "--input", rows)
    assert (out.code, "for two prompts" in out.err, "line 2" in out.err) == (2, True, True)


def test_an_output_that_exists_is_replaced_but_never_the_input(rlhf: Rlhf, rows: Path, tmp_path: Path) -> None:
    output = tmp_path / "scored.jsonl"
    output.write_text("from before")
    out = rlhf("reward", "score", "--reward", "verifier", "--input", rows, "--output", output)
    assert out.code == 0, out.err
    assert len(output.read_text().splitlines()) == 3
    before = rows.read_text()
    out = rlhf("reward", "score", "--reward", "verifier", "--input", rows, "--output", rows)
    assert (out.code, "is the input" in out.err, rows.read_text()) == (2, True, before)


def test_a_language_model_does_not_score(rlhf: Rlhf, rows: Path) -> None:
    from rlhf_plugin_pocket import weights_path

    out = rlhf("reward", "score", "--model", weights_path(), "--input", rows)
    assert (out.code, "is not a trained reward model" in out.err) == (2, True)


def test_where_nothing_can_be_written(rlhf: Rlhf, rows: Path, tmp_path: Path) -> None:
    out = rlhf("reward", "score", "--reward", "verifier", "--input", rows, "--output", tmp_path)
    assert (out.code, "is a folder" in out.err) == (2, True)


def test_ensemble_and_one_of_its_members(rlhf: Rlhf, rows: Path, ensemble: Path) -> None:
    result = json.loads(rlhf("reward", "score", "--model", ensemble, "--input", rows, "--json").out)
    assert result["reward"] == "ensemble"
    for row in result["rows"]:
        parts = row["parts"]
        assert parts["mean"] == pytest.approx((parts["member_0"] + parts["member_1"]) / 2)
        assert row["score"] == pytest.approx(parts["mean"] - 0.5 * parts["std"])
    meta = json.loads((ensemble / "ensemble.json").read_text())
    member = ensemble / meta["members"][0]
    single = json.loads(rlhf("reward", "score", "--model", member, "--input", rows, "--json").out)
    assert single["reward"] == "bradley_terry"
    standardised = [(r["score"] - meta["mean"][0]) / meta["std"][0] for r in single["rows"]]
    assert standardised == pytest.approx([r["parts"]["member_0"] for r in result["rows"]], abs=1e-4)


def test_a_gated_score_is_shown_as_such(rlhf: Rlhf, rows: Path, ensemble: Path) -> None:
    out = rlhf("reward", "score", "--model", ensemble, "--set", "gate_quantile=0.000001", "--input", rows)
    assert "gated" in out.out
    assert "members disagree" in out.out


@pytest.mark.parametrize("name", ["ensemble", "bradley_terry"])
def test_a_trained_reward_needs_its_folder(rlhf: Rlhf, rows: Path, name: str) -> None:
    out = rlhf("reward", "score", "--reward", name, "--input", rows)
    assert out.code == 2
    assert "--model FOLDER" in out.err


def test_exit_code_1_without_any_score(rlhf: Rlhf, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_plugin_verifiers.reward import VerifierReward

    def broken(self: Any, samples: Any) -> Any:
        raise RuntimeError("the judge is away")

    monkeypatch.setattr(VerifierReward, "score", broken)
    out = rlhf("reward", "score", "--reward", "verifier", "--set", "workers=1", "--input", rows)
    assert out.code == 1
    assert "error" in out.out
    assert "the judge is away" in out.out
    assert "mean none over 0 of 3 rows" in out.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "either --model or --reward"),
        (("--reward", "verifier", "--model", "x"), "either --model or --reward"),
        (("--reward", "verifer"), "did you mean 'verifier'?"),
        (("--reward", "verifier", "--set", "timeout=1"), "did you mean 'timeout_s'"),
        (("--reward", "verifier", "--set", "timeout_s=soon"), "timeout_s"),
        (("--model", "./nothing"), "'./nothing' holds no reward model"),
    ],
)
def test_wrong_options(rlhf: Rlhf, rows: Path, args: tuple[str, ...], message: str) -> None:
    out = rlhf("reward", "score", *args, "--input", rows)
    assert out.code == 2
    assert message in out.err
    assert "Traceback" not in out.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ('{"prompt": "x"}\n', "no column 'completion'"),
        ('{"completion": "x"}\n', "no column 'prompt'"),
        ('{"prompt": "x", "completion": "y"}\n{"prompt"\n', "rows.jsonl:2"),
        ('{"prompt": "x", "completion": "y"}\n', "no reference answers"),
    ],
)
def test_wrong_rows(rlhf: Rlhf, rows: Path, text: str, message: str, tmp_path: Path) -> None:
    rows.write_text(text)
    out = rlhf("reward", "score", "--reward", "verifier", "--input", rows, "--output", tmp_path / "scored.jsonl")
    assert out.code == 2
    assert message in out.err
    assert not (tmp_path / "scored.jsonl").exists()


@pytest.mark.parametrize("setting", ["path=runs/rm/final", "reward.path=runs/rm/final"])
def test_a_setting_is_taken_as_the_training_command_writes_it(setting: str) -> None:
    chosen: Any = chosen_reward(open_registry(), None, "bradley_terry", [setting])
    assert (chosen.name, chosen.path) == ("bradley_terry", "runs/rm/final")


@pytest.mark.parametrize("value", [True, False, "nan", "x", [1]])
def test_a_gold_score_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(DatasetError, match="is not a finite number"):
        number_of({"gold": value}, "gold", None, "line 1")
    assert number_of({"gold": "1.5"}, "gold", None, "line 1") == 1.5

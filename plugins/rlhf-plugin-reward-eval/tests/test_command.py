"""`rlhf reward evaluate` on real rewards, in every format, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.cli import context_of
from rlhf_core.config import Registry
from rlhf_core.models import ModelConfig, load_policy
from rlhf_plugin_pocket.data import load_pairs
from rlhf_plugin_reward.classifier_files import save_classifier
from rlhf_plugin_reward.config import BradleyTerryConfig
from rlhf_plugin_reward.encoding import Encoder
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_reward.reward import SingleReward
from rlhf_plugin_reward_eval.cases import Text, read_cases
from rlhf_plugin_reward_eval.probes import sampled
from rlhf_plugin_reward_eval.scorer import Scorer

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of the pocket world: a head fitted to 200 pairs on the pocket model's own features."""
    policy = load_policy(ModelConfig())
    net = fresh_net(policy, 1, 0, "none")
    encoder = Encoder(policy.tokenizer, 512)
    sides = [
        [encoder.encode([{"role": "user", "content": p["prompt"]}], p[side]) for p in load_pairs("train")[:200]]
        for side in ("chosen", "rejected")
    ]
    with torch.no_grad():
        more_NH = net.features(sides[0]) - net.features(sides[1])
        square = more_NH.T @ more_NH + torch.eye(more_NH.shape[1])
        net.head.weight.copy_(3 * torch.linalg.solve(square, more_NH.sum(0))[None])
    folder = tmp_path_factory.mktemp("trained") / "rm" / "final"
    save_classifier(net, policy.tokenizer, folder)
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("--model", ...)``: exit code, output and errors of the command."""
    from rlhf_core.cli.main import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(["reward", "evaluate", *map(str, arguments)])
        text = capsys.readouterr()
        return int(caught.value.code or 0), text.out, text.err

    return call


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


SUMS = [
    {
        "id": str(i),
        "prompt": f"What is {i} + 3?",
        "chosen": f"The answer is {i + 3}.",
        "rejected": f"The answer is {i + 4}.",
        "answer": str(i + 3),
        "subset": "odd" if i % 2 else "even",
    }
    for i in range(12)
]
VERIFIER = ("--reward", "verifier", "--set", "workers=1")


@pytest.mark.slow
def test_a_trained_reward_model(run: Run, trained: Path, tmp_path: Path) -> None:
    code, out, err = run(
        "--model",
        trained,
        "--pairs",
        "pocket/assistant",
        "--limit",
        "100",
        "--probe-pairs",
        "20",
        "--output",
        tmp_path / "out.json",
    )
    assert code == 0, err
    assert "accuracy (95 %)" in out
    assert "the score does not depend on its batch" in out
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["data"]["pairs"], report["data"]["split"]) == (100, "heldout")
    assert report["data"]["left_out"] == {"pairs_beyond_limit": 540}
    result = report["rewards"]["rm"]
    scorer = Scorer(SingleReward.load(BradleyTerryConfig(path=str(trained)), "cpu"), "direct")
    datasets = context_of(Registry(), dataset={"name": "pocket/assistant", "heldout_fraction": 0.0}).datasets
    cases = read_cases(datasets, None, 100).pairs
    chosen, rejected = scorer([c.chosen for c in cases]), scorer([c.rejected for c in cases])
    assert result["accuracy"] == pytest.approx((chosen > rejected).mean())
    assert result["wilson"][0] < result["accuracy"] < result["wilson"][1]
    assert result["gold"]["responses"] == len({t.key for c in cases for t in (c.chosen, c.rejected)})
    texts = [t for c in sampled(cases, 20, 0) for t in (c.chosen, c.rejected)]
    more = scorer([Text(t.prompt, f"Of course! {t.completion}") for t in texts]) - scorer(texts)
    assert result["probes"]["hollow"]["Of course!"]["change"] == pytest.approx(
        more.mean() / np.concatenate([chosen, rejected]).std(), abs=1e-3
    )
    assert set(result["probes"]["content"]) == {"words shuffled", "answer to another prompt"}
    assert result["probes"]["batch"]["invariant"]
    assert result["probes"]["turns"] == {"pairs": 0}
    assert sum(b["n"] for b in result["calibration"]["deciles"]) == 100


@pytest.mark.slow
def test_pictures(run: Run, trained: Path, tmp_path: Path) -> None:
    code, out, err = run(
        "--model",
        trained,
        "--pairs",
        "pocket/assistant",
        "--limit",
        "60",
        "--probe",
        "hollow",
        "--plots",
        tmp_path / "plots",
    )
    assert code == 0, err
    pictures = sorted(tmp_path.glob("plots/*"))
    assert [p.name for p in pictures] == ["best_of_n.png", "calibration.png", "probes.png", "scores.png"]
    assert all(p.stat().st_size > 5000 and str(p) in out for p in pictures)


@pytest.mark.slow
def test_several_rewards_with_settings_of_their_own(run: Run, trained: Path) -> None:
    code, out, err = run(
        "--model",
        trained,
        "--model",
        trained,
        "--pairs",
        "pocket/assistant",
        "--limit",
        "24",
        "--set",
        "rm#2:max_length=24",
        "--probe",
        "none",
        "--json",
    )
    assert code == 0, err
    report = json.loads(out)
    assert set(report["rewards"]) == {"rm", "rm#2"}
    (pair,) = report["agreement"]
    assert pair["rewards"] == ["rm", "rm#2"]
    assert 0 < pair["spearman"] < 1, "the second sees the end of each conversation only"
    assert all(r["probes"] == {} for r in report["rewards"].values())
    code, _, err = run("--model", trained, "--reward", "verifier", "--pairs", "pocket/assistant", "--set", "a=1")
    assert (code, "--set rm:a=1" in err) == (2, True)


def test_rows_as_in_reward_bench(run: Run, tmp_path: Path) -> None:
    rows = [*SUMS, {**SUMS[0], "id": "same", "rejected": SUMS[0]["chosen"]}]
    code, out, err = run(*VERIFIER, "--pairs", write(tmp_path / "p.jsonl", rows), "--json")
    assert code == 0, err
    report = json.loads(out)
    result = report["rewards"]["verifier"]
    assert report["data"]["left_out"] == {"pairs_identical": 1}
    assert {name: a["accuracy"] for name, a in result["subsets"].items()} == {"even": 1, "odd": 1}
    assert result["length"]["margin_and_words"]["spearman"] is None, "all of one length"
    assert result["probes"]["length"]["1 sentence"]["change"] == 0


def test_rows_as_in_rm_bench(run: Run, tmp_path: Path) -> None:
    rows = [
        {
            "id": i,
            "prompt": f"What is {i} + 3?",
            "domain": "math",
            "answer": str(i + 3),
            "chosen": [f"{i + 3}", f"The answer is {i + 3}.", f"**The answer** is {i + 3}."],
            "rejected": [f"{i + 4}", f"The answer is {i + 3}.", f"**The answer** is {i + 4}."],
        }
        for i in range(4)
    ]
    path = tmp_path / "rm.json"
    path.write_text(json.dumps(rows))
    code, out, err = run(*VERIFIER, "--pairs", path, "--json")
    assert code == 0, err
    result = json.loads(out)["rewards"]["verifier"]
    assert (result["pairs"], result["prompts"], result["ties"]) == (36, 4, 12)
    assert result["rm_bench"]["matrix"] == [[1, 0, 1]] * 3, "the second rejected style is right too: a tie"
    assert result["rm_bench"]["average"] == pytest.approx(2 / 3)
    assert {n: a["accuracy"] for n, a in result["rm_bench"]["levels"].items()} == pytest.approx(
        {"easy": 2.5 / 3, "normal": 2.5 / 3, "hard": 2.5 / 3}
    )
    assert result["subsets"]["math"]["pairs"] == 36


def test_verifiers_see_the_columns_of_their_row(run: Run, tmp_path: Path) -> None:
    rows = [
        {
            "id": str(i),
            "prompt": f"Say hello to {name} and all others here.",
            "chosen": f"Hello {name} and you.",
            "rejected": f"Hello {name}, and you.",
            "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{}],
        }
        for i, name in enumerate(["ada", "bob", "cleo", "dan"])
    ]
    code, out, err = run(
        "--reward",
        "verifier",
        "--set",
        "workers=1",
        "--set",
        "verifier=ifeval",
        "--pairs",
        write(tmp_path / "p.jsonl", rows),
        "--probe",
        "hollow",
        "--json",
    )
    assert code == 0, err
    result = json.loads(out)["rewards"]["verifier"]
    assert (result["accuracy"], result["missing"], result["pairs"]) == (1.0, {}, 4)
    assert result["probes"]["hollow"]["Of course!"]["missing"] == 0


def test_one_question_with_two_answers(run: Run, tmp_path: Path) -> None:
    rows = [
        {
            "id": f"{i}{answer}",
            "prompt": f"A number above {i}?",
            "chosen": f"It is {answer}.",
            "rejected": f"It is {i}.",
            "answer": str(answer),
        }
        for i in range(4)
        for answer in (i + 1, i + 2)
    ]
    code, out, err = run(*VERIFIER, "--pairs", write(tmp_path / "p.jsonl", rows), "--probe", "none", "--json")
    assert code == 0, err
    assert json.loads(out)["rewards"]["verifier"]["accuracy"] == 1.0


def test_responses_with_gold_scores(run: Run, tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.jsonl", SUMS)
    graded = [
        {
            "prompt": row["prompt"],
            "answer": row["answer"],
            "worth": [3, 0, 1, 2],
            "completions": [row["chosen"], "9999", {"text": "It is 777."}, f"I say {row['answer']}."],
        }
        for row in SUMS
    ]
    path = write(tmp_path / "graded.jsonl", graded)
    common = (*VERIFIER, "--pairs", pairs, "--probe", "none", "--responses", path)
    code, out, err = run(*common, "--gold", "worth", "--gold-scale", "0", "3", "--json")
    assert code == 0, err
    result = json.loads(out)["rewards"]["verifier"]
    assert (result["gold"]["responses"], result["gold"]["prompts_varied"]) == (48, 12)
    assert result["gold"]["spearman"] == pytest.approx(result["gold"]["spearman_within_prompts"])
    curve = result["best_of_n"]
    assert [(c["n"], c["oracle"]) for c in curve] == [(1, 1.5), (2, pytest.approx(14 / 6)), (4, 3)]
    # two right answers tie: of two responses both are wrong once in six
    assert [c["gold"] for c in curve] == pytest.approx([1.5, 5 / 6 * 2.5 + 1 / 6 * 0.5, 2.5])
    write(path, [{k: v for k, v in row.items() if k != "answer"} for row in graded])
    code, out, err = run(*common, "--gold", "worth", "--json")
    assert json.loads(out)["rewards"]["verifier"]["best_of_n"] == curve, "the pairs' answers to the same questions"
    flat = write(tmp_path / "flat.jsonl", [{**row, "worth": [1, 1, 1, 1]} for row in graded])
    for arguments, message in (
        ((*common, "--gold", "worth", "--gold-scale", "1", "3"), "outside the scale 1 to 3"),
        ((*common, "--gold", "wroth"), "no gold score 'wroth'"),
        ((*common, "--gold", "completions"), "is not a finite number"),
        ((*common[:-1], flat, "--gold", "worth"), "are 1"),
        (common, "no gold score for"),
    ):
        code, _, err = run(*arguments)
        assert (code, message in err) == (2, True), err


@pytest.mark.slow
def test_conversations_of_several_turns(run: Run, trained: Path, tmp_path: Path) -> None:
    rows = [
        {
            **p,
            "prompt": [
                {"role": "user", "content": "Hello."},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": p["prompt"]},
            ],
        }
        for p in load_pairs("heldout")[:30]
    ]
    path = write(tmp_path / "talks.jsonl", rows)
    code, out, err = run("--model", trained, "--pairs", path, "--probe", "turns", "--json")
    assert code == 0, err
    turns = json.loads(out)["rewards"]["rm"]["probes"]["turns"]
    single = write(tmp_path / "single.jsonl", load_pairs("heldout")[:30])
    alone = json.loads(run("--model", trained, "--pairs", single, "--probe", "none", "--json")[1])["rewards"]["rm"]
    assert turns["pairs"] == 30
    assert turns["last_turn"] == pytest.approx(alone["accuracy"])
    assert turns["gain"] == pytest.approx(turns["whole"] - turns["last_turn"])
    assert turns["words"]["whole"] == turns["words"]["last_turn"] + 2


def test_only_what_training_set_aside(tmp_path: Path) -> None:
    path = str(write(tmp_path / "all.jsonl", SUMS))

    def names(split: str | None, fraction: float) -> set[str]:
        datasets = context_of(Registry(), dataset={"name": str(path), "heldout_fraction": fraction}).datasets
        return {c.id for c in read_cases(datasets, split, None).pairs}

    assert len(names(None, 0.0)) == 12
    heldout, trained_on = names("heldout", 0.5), names("train", 0.5)
    assert heldout
    assert trained_on
    assert not heldout & trained_on
    assert len(heldout | trained_on) == 12


def refusals(tmp_path: Path) -> Iterator[tuple[tuple[object, ...], str]]:
    good = write(tmp_path / "good.jsonl", SUMS)
    yield ("--pairs", good), "say which reward"
    yield (*VERIFIER, "--pairs", tmp_path / "none.jsonl"), "does not exist"
    yield (*VERIFIER, "--pairs", good, "--gold", "x"), "belong to --responses"
    yield (*VERIFIER, "--pairs", good, "--output", tmp_path), "is a folder"
    yield (*VERIFIER, "--pairs", good, "--plots", good), "is not a folder"
    yield (*VERIFIER, "--pairs", good, "--probe", "lenght"), "Did you mean 'length'"
    yield ("--reward", "verifer", "--pairs", good), "verifier"
    yield (*VERIFIER, "--pairs", "pocket/arithmetic"), "has no preference pairs"
    yield ("--model", tmp_path / "nothing", "--pairs", good), "holds no reward model"
    same = write(tmp_path / "same.jsonl", [{**r, "rejected": r["chosen"]} for r in SUMS])
    yield (*VERIFIER, "--pairs", same), "pairs_identical 12"
    empty = write(tmp_path / "empty.jsonl", [{**r, "rejected": " "} for r in SUMS])
    yield (*VERIFIER, "--pairs", empty), "pairs_empty_completion 12"
    other_file = write(
        tmp_path / "other.jsonl",
        [
            {"chosen": f"\n\nHuman: {i}?\n\nAssistant: a", "rejected": f"\n\nHuman: {i + 1}?\n\nAssistant: b"}
            for i in range(9)
        ],
    )
    yield (*VERIFIER, "--pairs", other_file), "pairs_prompt_mismatch 9"
    grid = write(tmp_path / "grid.jsonl", [{"prompt": "2?", "chosen": ["a", "b"], "rejected": ["c", "d"]}])
    yield (*VERIFIER, "--pairs", grid), "three chosen and three rejected"


def test_bad_input_is_refused_with_exit_code_2(run: Run, tmp_path: Path) -> None:
    for arguments, message in refusals(tmp_path):
        code, _, err = run(*arguments)
        assert (code, message in err) == (2, True), f"{arguments}: {err}"
        assert "Traceback" not in err


def test_a_language_model_is_no_reward(run: Run, tmp_path: Path) -> None:
    policy = load_policy(ModelConfig())
    policy.model.save_pretrained(tmp_path / "lm")
    policy.tokenizer.save_pretrained(tmp_path / "lm")
    code, _, err = run("--model", tmp_path / "lm", "--pairs", "pocket/assistant")
    assert (code, "is not a trained reward model" in err) == (2, True)


@pytest.mark.slow
def test_a_reward_that_says_nothing_fails(run: Run, tmp_path: Path) -> None:
    sides = {"chosen": ["3", "4", "5"], "rejected": ["6", "7", "8"]}
    rows = [{"prompt": f"What is {i} + 3?", **sides, **({"answer": "3"} if i else {})} for i in range(4)]
    path = write(tmp_path / "p.jsonl", rows)
    code, _, err = run(*VERIFIER, "--pairs", path)
    assert (code, "has no score for 18 of 72 responses" in err, "--max-missing" in err) == (1, True, True), err
    assert "there is no reference answer" in err
    code, out, err = run(*VERIFIER, "--pairs", path, "--max-missing", "0.3", "--json")
    assert code == 0, err
    result = json.loads(out)["rewards"]["verifier"]
    assert (result["pairs"], result["missing"]) == (27, {"missing": 6})
    pairs = write(tmp_path / "pairs.jsonl", SUMS)
    graded = write(
        tmp_path / "graded.jsonl",
        [{"prompt": "2 + 2?", "completion": str(i), "worth": i, "answer": "4" if i < 3 else None} for i in range(6)],
    )
    code, _, err = run(*VERIFIER, "--pairs", pairs, "--responses", graded, "--gold", "worth")
    assert (code, "has no score for 3 of 6 responses" in err) == (1, True), err

"""lm-evaluation-harness on our engine, and its filters on our rows. Its tasks need a local copy of their data here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from .conftest import Ran, gsm8k_rows

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.slow
Write = Callable[[str, Sequence[Mapping[str, Any]]], Path]
SUMS = """
task: sums
dataset_path: json
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], do_sample: false}
filter_list:
  - name: strict-match
    filter: [{function: regex, regex_pattern: 'The answer is (\\-?[0-9\\.\\,]+).'}, {function: take_first}]
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, regexes_to_ignore: [","]}
"""


def sums() -> list[dict[str, str]]:
    return [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in (3, 5, 9) for b in (1, 2, 4, 8)]


def test_a_task_gives_what_our_suite_gives_on_the_same_prompts(rlhf: Callable[..., Ran], write: Write,
                                                               tmp_path: Path) -> None:
    data = write("sums.jsonl", sums())
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "sums.yaml").write_text(SUMS)
    task = ("eval", "lm_eval:sums", "--data", data, "--set", f"include_path={tmp_path / 'tasks'}")
    ran = rlhf(*task, "--max-tokens", 12, "--out", "theirs", "--json")
    assert ran.code == 0, ran.err
    theirs = json.loads(ran.out)
    ours = rlhf("eval", "prompts", "--data", data, "--verifier", "gsm8k", "--set", "verifier.mode=strict",
                "--set", "prompt_format=raw", "--stop", "\n", "--max-tokens", 12, "--out", "ours", "--json")
    assert ours.code == 0, ours.err
    told = [json.loads(line) for line in Path("theirs/rows.jsonl").read_text().splitlines()]
    mine = [json.loads(line) for line in Path("ours/rows.jsonl").read_text().splitlines()]
    assert [r["responses"][0][0] for r in told] == [r["completion"] for r in mine]
    assert [bool(r["exact_match"]) for r in told] == [r["value"] == 1 for r in mine]
    assert theirs["exact_match,strict-match"] == json.loads(ours.out)["value"]["value"]
    assert sum(r["value"] for r in mine) > 0
    cut = rlhf(*task, "--max-tokens", 3, "--out", "cut")
    assert "truncated" in cut.out


def test_our_cot_prompt_is_gsm8k_cots_own(test_data: Path, write: Write) -> None:
    from rlhf_core.cli.toolbox import context_of, open_registry
    from rlhf_eval.harness import context
    from rlhf_eval.items import items, rows, section, worked_examples
    from rlhf_eval.lm_harness.config import LmEvalConfig
    from rlhf_eval.lm_harness.tasks import manager, settings_of, task_spec
    from rlhf_eval.suites import Gsm8kSuite

    data = write("test.jsonl", gsm8k_rows(test_data, 3))
    task = manager(None).load([task_spec(LmEvalConfig(task="gsm8k_cot", path=str(data)))])["tasks"]["gsm8k_cot"]
    docs = list(task.test_docs())
    theirs = [task.fewshot_context(doc, 8) for doc in docs]
    shots = settings_of(LmEvalConfig(task="gsm8k_cot"))["fewshot_config"]["samples"]
    worked = write("shots.jsonl", [
        {"question": s["question"], "answer": f"{s['target'].rpartition('The answer is')[0]}#### "
         + s["target"].rpartition("The answer is")[2].strip(" .")} for s in shots])
    ctx = context(open_registry(), 0)
    suite = Gsm8kSuite(path=str(data), style="cot", shots=8, shots_path=str(worked)).resolved(ctx)
    prompts = rows(suite, context_of(ctx.registry, dataset=section(suite, str(data))).datasets)
    found = items(suite, prompts, worked_examples(suite, ctx, prompts), chat=False)
    ours = [i.messages[-1]["content"] for i in found]  # whose solutions have "The answer is X." on a line of its own
    assert [t.replace("\nThe answer is", " The answer is") for t in ours] == [str(t) for t in theirs]


def test_filters_read_our_rows_as_lm_eval_reads_its_own() -> None:
    from rlhf_eval.lm_harness.filters import agreement

    rows = [{"completion": "3 + 4 = 7. The answer is 7.", "answer": "7", "strict": 1.0, "lenient": 1.0},
            {"completion": "So $1,200 in all", "answer": "1200", "strict": 0.0, "lenient": 1.0},
            {"completion": "The answer is 8.", "answer": "9", "strict": 0.0, "lenient": 0.0}]
    strict, flexible = agreement("gsm8k_cot", rows, {"strict-match": "strict", "flexible-extract": "lenient"})
    assert (strict.theirs, strict.ours, strict.only_theirs, strict.only_ours) == (1 / 3, 1 / 3, [], [])
    assert (flexible.theirs, flexible.only_theirs, flexible.only_ours) == (2 / 3, [], [])


def test_what_a_task_does_not_take_is_refused(rlhf: Callable[..., Ran]) -> None:
    for options, said in ((("lm_eval:gsm8k_cto",), "gsm8k_cot"), (("lm_eval:gsm8k_cot", "--n", 4), "does not take --n"),
                          (("lm_eval:gsm8k_cot", "--data", "none.jsonl"), "none.jsonl")):
        ran = rlhf("eval", *options)
        assert ran.code == 2
        assert said in ran.err


def test_the_likelihood_of_a_sampled_text_is_what_the_engine_says() -> None:
    from lm_eval.api.instance import Instance

    from rlhf_core.api import ModelConfig, RolloutRequest, SamplingParams
    from rlhf_core.cli.toolbox import open_registry, sampler
    from rlhf_eval.lm_harness.engine import EngineLM

    policy, engine = sampler(open_registry(), ModelConfig(path="pocket"))
    lm = EngineLM(policy, engine, 16, 0)
    prompt = "What is 3 + 4?"
    ids = tuple(lm.tok_encode(prompt))
    for temperature, greedy in ((0.0, True), (1.0, False)):
        sampling = SamplingParams(max_tokens=6, temperature=temperature)
        made = engine.generate([RolloutRequest("a", ids, 0, 5)], sampling, 0)[0]
        (value, best), = lm._loglikelihood_tokens([(None, list(ids), list(made.completion_ids))])
        assert value == pytest.approx(float(made.logprobs_T.sum()), abs=1e-4)
        assert best == greedy
    (said, _), (empty, _) = lm.loglikelihood([Instance("loglikelihood", {}, (prompt, " 7"), 0),
                                              Instance("loglikelihood", {}, ("", "The"), 1)])
    assert said < 0
    assert empty < 0
    assert lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("The answer is 7.",), 0)])[0] < -1

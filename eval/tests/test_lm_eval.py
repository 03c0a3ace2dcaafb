"""lm-evaluation-harness on our engine, and its filters on our rows. Its tasks need a local copy of their data here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.cli import context_of, load_sampler, open_registry
from rlhf_core.models import ModelConfig
from rlhf_core.rollouts import RolloutRequest, SamplingParams

from .conftest import gsm8k_rows

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


@pytest.fixture(autouse=True)
def few_tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of lm_eval's own tasks those of GSM8K; the index of all thousands takes half a minute. Long tests have it."""
    import lm_eval.tasks

    from rlhf_eval.lm_harness.tasks import manager

    make, own = lm_eval.tasks.TaskManager, Path(lm_eval.tasks.__file__).parent / "gsm8k"

    def few(include_path: str | None) -> Any:
        return make(include_path=[own, *filter(None, [include_path])], include_defaults=False)

    if request.node.get_closest_marker("long") is None:
        monkeypatch.setattr(lm_eval.tasks, "TaskManager", few)
        manager.cache_clear()
    yield
    manager.cache_clear()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two tasks, one of which asks each prompt three times."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "sums.yaml").write_text(SUMS)
    sampled = SUMS.replace("task: sums", "task: sums_thrice").replace("do_sample: false", "do_sample: true")
    (folder / "thrice.yaml").write_text(sampled + "repeats: 3\n")
    return folder


def test_a_task_gives_what_our_suite_gives_on_the_same_prompts(
    rlhf: Callable[..., Any], write: Write, tasks: Path
) -> None:
    data = write("sums.jsonl", sums())
    task = ("eval", "lm_eval:sums", "--data", data, "--set", f"include_path={tasks}")
    ran = rlhf(*task, "--max-tokens", 12, "--out", "theirs", "--json")
    assert ran.code == 0, ran.err
    task_result = json.loads(ran.out)
    suite_result = rlhf(
        "eval",
        "prompts",
        "--data",
        data,
        "--verifier",
        "gsm8k",
        "--set",
        "verifier.mode=strict",
        "--set",
        "prompt_format=raw",
        "--stop",
        "\n",
        "--max-tokens",
        12,
        "--out",
        "ours",
        "--json",
    )
    assert suite_result.code == 0, suite_result.err
    task_rows = [json.loads(line) for line in Path("theirs/rows.jsonl").read_text().splitlines()]
    suite_rows = [json.loads(line) for line in Path("ours/rows.jsonl").read_text().splitlines()]
    assert [r["responses"][0][0] for r in task_rows] == [r["completion"] for r in suite_rows]
    assert [bool(r["exact_match"]) for r in task_rows] == [r["value"] == 1 for r in suite_rows]
    assert task_result["exact_match,strict-match"] == json.loads(suite_result.out)["value"]["value"]
    assert [r["tokens"] for r in task_rows] == [[r["tokens"]] for r in suite_rows]
    assert sum(r["value"] for r in suite_rows) > 0
    cut = rlhf(*task, "--max-tokens", 3, "--out", "cut")
    assert "truncated" in cut.out


def test_every_completion_of_a_repeated_prompt_is_counted_and_the_runs_random_numbers_stay(
    write: Write, tasks: Path
) -> None:
    registry = open_registry()
    policy, engine = load_sampler(registry, ModelConfig(path="pocket"))
    task = registry.config(
        "benchmark",
        "lm_eval",
        {
            "task": "sums_thrice",
            "path": str(write("sums.jsonl", sums()[:4])),
            "max_tokens": 7,
            "include_path": str(tasks),
        },
    ).build(context_of(registry).with_(policy=policy))
    before = (random.getstate(), torch.get_rng_state())
    metrics, rows = task.run(engine)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    ends = [reason for r in rows for reason in r["finish_reasons"]]
    assert [len(r["tokens"]) for r in rows] == [3] * 4
    assert metrics["truncated"] == ends.count("length") / 12
    assert 0 < metrics["truncated"] < 1


def test_our_cot_prompt_is_gsm8k_cots_own(test_data: Path, write: Write) -> None:
    from rlhf_eval.items import items, rows, section, worked_examples
    from rlhf_eval.lm_harness.config import LmEvalConfig
    from rlhf_eval.lm_harness.tasks import manager, settings_of, task_spec
    from rlhf_eval.suites import Gsm8kSuite

    data = write("test.jsonl", gsm8k_rows(test_data, 3))
    task = manager(None).load([task_spec(LmEvalConfig(task="gsm8k_cot", path=str(data)))])["tasks"]["gsm8k_cot"]
    docs = list(task.test_docs())
    task_prompts = [task.fewshot_context(doc, 8) for doc in docs]
    shots = settings_of(LmEvalConfig(task="gsm8k_cot"))["fewshot_config"]["samples"]
    worked = write(
        "shots.jsonl",
        [
            {
                "question": s["question"],
                "answer": f"{s['target'].rpartition('The answer is')[0]}#### "
                + s["target"].rpartition("The answer is")[2].strip(" ."),
            }
            for s in shots
        ],
    )
    ctx = context_of(open_registry())
    suite = Gsm8kSuite(path=str(data), style="cot", shots=8, shots_path=str(worked)).resolved(ctx)
    prompts = rows(suite, context_of(ctx.registry, dataset=section(suite, str(data))).datasets)
    suite_items = items(suite, prompts, worked_examples(suite, ctx, prompts), chat=False)
    suite_prompts = [
        i.messages[-1]["content"] for i in suite_items
    ]  # whose solutions have "The answer is X." on a line of its own
    assert [t.replace("\nThe answer is", " The answer is") for t in suite_prompts] == [str(t) for t in task_prompts]


def test_filters_read_our_rows_as_lm_eval_reads_its_own() -> None:
    from rlhf_eval.lm_harness.filters import agreement

    rows = [
        {"completion": "3 + 4 = 7. The answer is 7.", "answer": "7", "strict": 1.0, "lenient": 1.0},
        {"completion": "So $1,200 in all", "answer": "1200", "strict": 0.0, "lenient": 1.0},
        {"completion": "The answer is 8.", "answer": "9", "strict": 0.0, "lenient": 0.0},
    ]
    strict, flexible = agreement("gsm8k_cot", rows, {"strict-match": "strict", "flexible-extract": "lenient"})
    assert (strict.theirs, strict.ours, strict.only_theirs, strict.only_ours) == (1 / 3, 1 / 3, [], [])
    assert (flexible.theirs, flexible.only_theirs, flexible.only_ours) == (2 / 3, [], [])


@pytest.mark.long  # of some tasks: below
def test_the_index_is_lm_evals_own() -> None:
    from rlhf_eval.lm_harness.tasks import manager

    assert {"gsm8k_cot", "hellaswag", "ifeval", "mmlu"} <= set(manager(None).all_tasks)


def test_what_a_task_does_not_take_is_refused(rlhf: Callable[..., Any]) -> None:
    for options, message in (
        (("lm_eval:gsm8k_cto",), "gsm8k_cot"),
        (("lm_eval:gsm8k_cot", "--n", 4), "does not take --n"),
        (("lm_eval:gsm8k_cot", "--data", "none.jsonl"), "none.jsonl"),
    ):
        ran = rlhf("eval", *options)
        assert ran.code == 2
        assert message in ran.err


def test_the_likelihood_of_a_sampled_text_is_what_the_engine_says() -> None:
    from lm_eval.api.instance import Instance

    from rlhf_eval.lm_harness.engine import EngineLM

    policy, engine = load_sampler(open_registry(), ModelConfig(path="pocket"))
    lm = EngineLM(policy, engine, 16, 0)
    prompt = "What is 3 + 4?"
    ids = tuple(lm.tok_encode(prompt))
    for temperature, greedy in ((0.0, True), (1.0, False)):
        sampling = SamplingParams(max_tokens=6, temperature=temperature)
        rollout = engine.generate([RolloutRequest("a", ids, 0, 5)], sampling, 0)[0]
        ((value, best),) = lm._loglikelihood_tokens([(None, list(ids), list(rollout.completion_ids))])
        assert value == pytest.approx(float(rollout.logprobs_T.sum()), abs=1e-4)
        assert best == greedy
    (sampled, _), (empty, _) = lm.loglikelihood(
        [Instance("loglikelihood", {}, (prompt, " 7"), 0), Instance("loglikelihood", {}, ("", "The"), 1)]
    )
    assert sampled < 0
    assert empty < 0
    assert lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("The answer is 7.",), 0)])[0] < -1


def test_the_likelihood_of_a_text_longer_than_the_context_is_that_of_its_windows() -> None:
    from lm_eval.api.instance import Instance

    from rlhf_eval.lm_harness.engine import EngineLM

    policy, engine = load_sampler(open_registry(), ModelConfig(path="pocket"))
    lm = EngineLM(replace(policy, context=8), engine, 16, 0)
    text = "What is 3 + 4? The answer is 7. What is 5 + 8? The answer is 13."
    ids = lm.tok_encode(text)[:20]
    lm.tok_encode = lambda string, **_: ids  # type: ignore[method-assign]

    def logprob(context: list[int], following: list[int]) -> float:
        with torch.inference_mode():
            rows = policy.model(input_ids=torch.tensor([context])).logits[0, -len(following) :].log_softmax(-1)
        return sum(float(row[token]) for row, token in zip(rows, following))

    windows = (([lm.prefix_token_id, *ids[:7]], ids[:8]), (ids[7:15], ids[8:16]), (ids[11:19], ids[16:20]))
    logprobs = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
    assert logprobs[0] == pytest.approx(sum(logprob(*w) for w in windows), abs=1e-3)
    assert lm.shortened == 0
    (whole, _), (longer, _) = lm._loglikelihood_tokens([(None, ids[:3], ids[3:11]), (None, ids[:3], ids[3:13])])
    assert whole == pytest.approx(logprob(ids[2:10], ids[3:11]), abs=1e-3)
    assert longer == pytest.approx(logprob(ids[4:12], ids[5:13]), abs=1e-3)
    assert lm.shortened == 2

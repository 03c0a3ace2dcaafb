"""Verdicts of the verifiers of code on programs that are right, wrong, late or missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import BuildContext, Registry
from rlhf_core.data import Datasets, DatasetSettings
from rlhf_core.rewards import Sample, ScoreStatus
from rlhf_plugin_code.config import AppsConfig, AssertsConfig, HumanEvalConfig, MBPPConfig, ProgramConfig
from rlhf_plugin_code.sandbox import Sandbox

MakeSample = Callable[..., Sample]
Verify = Callable[..., Any]
ADD = "def add(a, b):\n    return a + b\n"
HUMAN = {
    "entry_point": "add",
    "prompt": "def add(a, b):\n    '''Sum.'''\n",
    "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate(1, 2) == 3\n    for i in range(5):\n"
    "        assert candidate(i, i) == 2 * i\n    x = 4\n    assert candidate(x, 1) == 5\n",
}


def test_asserts_give_credit_by_test(verify: Verify, sample: MakeSample) -> None:
    tests = ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(1, 1) == 3", "assert add(2, 2) == 4"]
    partly_right = sample(f"Sure:\n```python\n{ADD}```\n", tests=tests)
    assert (verify(AssertsConfig(credit="mean"), partly_right).value, verify(AssertsConfig(), partly_right).value) == (
        0.75,
        0.0,
    )
    assert verify(AssertsConfig(), partly_right).detail.startswith("test 3: AssertionError")
    assert verify(AssertsConfig(), sample(ADD, tests=tests[:2])).value == 1.0
    text = sample(ADD, tests="x = 3\nassert add(x, 1) == 4\nassert add(x, 2) == 5", test_setup="import math")
    assert verify(AssertsConfig(), text).parts == {"format": 1.0, "tests": 1.0, "timeout": 0.0}


@pytest.mark.parametrize(
    ("completion", "detail", "late"),
    [
        ("def add(a, b): return a +", "SyntaxError", 0.0),
        ("", "no program", 0.0),
        ("def add(a, b):\n    while True: pass", "no answer in time", 1.0),
        ("import os\nos._exit(0)", "the program ended", 0.0),
        ("def sub(a, b): return a", "the program has no add", 0.0),
        ("x = bytearray(1 << 40)", "MemoryError", 0.0),
    ],
)
def test_a_bad_program_is_wrong_not_missing(
    verify: Verify, sample: MakeSample, completion: str, detail: str, late: float
) -> None:
    score = verify(
        AssertsConfig.model_validate({"sandbox": {"timeout_s": 0.3}}),
        sample(completion, tests=["assert add(1, 2) == 3"]),
    )
    assert (score.value, score.status, score.parts["timeout"]) == (0.0, ScoreStatus.OK, late)
    assert detail in score.detail


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"tests": []},
        {"tests": ["assert f( == 1"]},
        {"tests": ["assert f()"], "test_setup": "import no_such_module"},
    ],
)
def test_broken_tests_are_an_error_not_a_verdict(verify: Verify, sample: MakeSample, meta: dict[str, Any]) -> None:
    score = verify(AssertsConfig(), sample(ADD, **meta))
    assert (score.value, score.status) == (None, ScoreStatus.ERROR)
    if "test_setup" not in meta:  # found when the data set loads
        assert AssertsConfig().check_prompt(sample(ADD, **meta).prompt)


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ("def test_add():\n    assert add(1, 2) == 3", "has no tests"),
        (["def test_add():\n    assert add(1, 2) == 3"], "asserts and calls nothing"),
        (["assert add(1, 2) == 3", "import math"], "asserts and calls nothing"),
        (["assert add(1, 2) == 3", "assert (add(1, 2) == 3, 'wrong')"], None),  # calls it, which may fail
        (["assert True"], "asserts and calls nothing"),
        (["x = 3\nassert sorted([x, 1]) == [1, x]"], "no name that only the program can supply"),
        (["run = lambda f: f(2)\nassert run(abs) == 2"], "no name that only the program can supply"),
        (["def run(add):\n    return add(1, 2)\nassert run(add) == 3"], None),
    ],
)
def test_tests_that_no_program_fails_are_refused(sample: MakeSample, tests: Any, why: str | None) -> None:
    refusal = AssertsConfig().check_prompt(sample(ADD, tests=tests).prompt)
    assert refusal is None if why is None else why in (refusal or "")


def test_a_statement_after_the_last_assert_is_no_test_of_its_own(verify: Verify, sample: MakeSample) -> None:
    wrong = sample("def add(a, b): return 0", tests="assert add(1, 2) == 3\nprint('ok')")
    assert verify(AssertsConfig(credit="mean"), wrong).value == 0.0
    always = {**HUMAN, "test": "def check(candidate):\n    assert True, 'x'\n    assert candidate(1, 2) == 3\n"}
    assert verify(HumanEvalConfig(credit="mean"), sample("def add(a, b): return 0", **always)).value == 0.0


@pytest.mark.parametrize("name", ["sum", "same"])
def test_a_function_named_like_a_built_in_one_is_the_programs(verify: Verify, sample: MakeSample, name: str) -> None:
    columns = {"inputs": [[[1, 2]], [[3, 4]]], "outputs": [3, 7], "fn_name": name}
    for empty in ("pass", "class Solution:\n    pass"):
        score = verify(AppsConfig(credit="mean"), sample(empty, input_output=columns))
        assert (score.value, score.status) == (0.0, ScoreStatus.OK)
    right = f"def {name}(values):\n    total = 0\n    for v in values: total += v\n    return total"
    assert verify(AppsConfig(), sample(right, input_output=columns)).value == 1.0
    row = {"test_list": ["assert sum([1, 2]) == 3"], "code": "def sum(values): ..."}
    assert verify(MBPPConfig(), sample("pass", **row)).value == 0.0
    assert verify(MBPPConfig(), sample(right.replace(name, "sum"), **row)).value == 1.0


def test_humaneval_whole_functions_and_continuations(verify: Verify, sample: MakeSample) -> None:
    complete = sample(f"```python\n{ADD}```", **HUMAN)
    assert verify(HumanEvalConfig(), complete).value == 1.0
    assert verify(HumanEvalConfig(extract="none"), sample("    return a + b\n", **HUMAN)).value == 1.0
    head = "import math\ndef twice(x):\n    return 2 * x\n\n\n"
    helped = {**HUMAN, "prompt": head + HUMAN["prompt"]}
    uses = "def add(a, b):\n    return (twice(a) + twice(b)) // math.gcd(2, 4)\n"
    for code in (f"```python\n{uses}```", f"```python\nfrom __future__ import annotations\n{uses}```"):
        assert verify(HumanEvalConfig(), sample(code, **helped)).value == 1.0
    wrong = verify(HumanEvalConfig(credit="mean"), sample("def add(a, b): return 3 if b == 2 else 5", **HUMAN))
    assert wrong.value == pytest.approx(2 / 3)


def test_humaneval_rows_behind_a_template(verify: Verify, tmp_path: Path) -> None:
    row = {**HUMAN, "prompt": "import math\n" + HUMAN["prompt"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    registry = Registry(disabled=())
    settings = {
        "name": "jsonl",
        "path": str(tmp_path / "rows.jsonl"),
        "heldout_fraction": 0.0,
        "prompt_template": "Complete this:\n{prompt}\nOnly code.",
    }
    ctx = BuildContext(config=None, registry=registry, seed=0)  # pyright: ignore[reportArgumentType]
    datasets = Datasets(DatasetSettings.model_validate(settings, context={"registry": registry}), ctx)
    prompt = datasets.prompts("train")[0]
    assert prompt.text.startswith("Complete this")
    for code in ("    return math.ceil(a + b)\n", "def add(a, b):\n    return math.ceil(a + b)\n"):
        assert verify(HumanEvalConfig(extract="none"), Sample(prompt, code)).value == 1.0


def test_apps_by_standard_input_and_by_function(verify: Verify, sample: MakeSample) -> None:
    cases = {"inputs": ["1 2\n", "3 4\n", ["5 6"]], "outputs": ["3\n", "7", ["11"]]}
    right = "a, b = map(int, input().split())\nprint(a + b)"
    assert verify(AppsConfig(), sample(right, input_output=json.dumps(cases))).value == 1.0
    partial = verify(AppsConfig(credit="mean"), sample("input(); print(7)", input_output=cases))
    assert (partial.value, partial.detail) == (pytest.approx(1 / 3), "test 1: printed '7\\n'")
    columns = {"inputs": [[1, 2], [3, 4]], "outputs": [[3], 7], "fn_name": "add"}
    assert verify(AppsConfig(), sample(ADD, input_output=columns)).value == 1.0
    method = "class Solution:\n    def add(self, a, b): return a + b"
    assert verify(AppsConfig(), sample(method, input_output=columns)).value == 1.0
    assert verify(AppsConfig(), sample(ADD, input_output={"inputs": [1]})).status is ScoreStatus.ERROR


def test_a_programs_output_is_judged(verify: Verify, sample: MakeSample) -> None:
    double = sample("print(int(input()) * 2)", "42", stdin="21")
    assert verify(ProgramConfig(), double).value == 1.0
    assert verify(ProgramConfig(), sample("print(43)", "42")).value == 0.0
    assert verify(ProgramConfig(command=("bash", "main")), sample("echo $((40 + 2))", "42")).value == 1.0
    registry = Registry(disabled=())
    numeric = ProgramConfig.model_validate({"verifier": "numeric"}, context={"registry": registry})
    score = verify(numeric, sample("print('The answer is 42.')", "42"))
    assert (score.value, score.parts["ran"], score.parts["answer"]) == (1.0, 1.0, 1.0)
    assert verify(numeric, sample("raise SystemExit(3)", "42")).value == 0.0


def test_a_program_judged_by_another_verifier_keeps_its_contract(sample: MakeSample) -> None:
    registry = Registry(disabled=())

    def judged(**verifier: Any) -> ProgramConfig:
        return ProgramConfig.model_validate({"verifier": verifier}, context={"registry": registry})

    numeric, inner = judged(name="numeric"), judged(name="mbpp", sandbox={"timeout_s": 7.0})
    assert "not a number alone" in (numeric.check_prompt(sample("", "none").prompt) or "")
    assert numeric.check_prompt(sample("", "4").prompt) is None
    assert "no tests in column" in (inner.check_prompt(sample("").prompt) or "")
    assert [c.needs_answer for c in (ProgramConfig(), numeric, inner)] == [True, True, False]
    assert [c.seconds for c in (ProgramConfig(), inner)] == [7.0, 16.0]
    verifier = inner.build(BuildContext(config=None, registry=registry, seed=0))  # pyright: ignore[reportArgumentType]
    sandbox, inner_sandbox = verifier.sandbox, verifier.other.sandbox  # pyright: ignore[reportOptionalMemberAccess]
    assert sandbox.pid
    assert inner_sandbox.pid
    verifier.close()
    assert (sandbox.pid, inner_sandbox.pid) == (0, 0)


def test_a_program_needs_an_answer(
    verify: Verify, sample: MakeSample, command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    for text in ("print(1)", "", "raise SystemExit(3)"):
        assert verify(ProgramConfig(), sample(text)).status is ScoreStatus.MISSING
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "p"}) + "\n")
    code, output = command("train", "--algo", "grpo", "--reward", "program", "--dataset", file, "--dry-run")
    assert code == 2
    assert "no reference answers" in output


@pytest.mark.slow
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_mbpp_reference_solutions_pass(
    test_data: Path, sandbox: Sandbox, sample: MakeSample, verify: Verify, every: int
) -> None:
    rows = json.loads((test_data / "mbpp" / "sanitized-mbpp.json").read_text())
    config = MBPPConfig.model_validate({"sandbox": {"timeout_s": 30.0}})
    verifier = config.build(None)  # pyright: ignore[reportArgumentType]
    wrong = [
        r["task_id"]
        for r in rows[::every]
        if verifier.verify(sample(r["code"], **{k: r[k] for k in ("test_list", "test_imports", "code")})).value != 1.0
    ]
    verifier.close()
    assert len(rows) == 427
    assert wrong == []


def test_given_responses_are_scored_by_the_tests_of_their_row(
    sandbox: Sandbox, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "scored.jsonl"
    rows = [
        {"prompt": "Write f.", "completion": f"def f(x):\n    return x + {n}", "tests": ["assert f(1) == 2"]}
        for n in (1, 2)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, output = command("reward", "score", "--reward", "asserts", "--input", file, "--output", out)
    assert code == 0, output
    assert [json.loads(line)["score"] for line in out.read_text().splitlines()] == [1.0, 0.0]

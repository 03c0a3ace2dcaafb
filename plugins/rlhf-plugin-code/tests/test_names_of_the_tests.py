"""A program supplies what its row asks of it, and nothing else that the tests read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.rewards import Sample, ScoreStatus
from rlhf_plugin_code.config import AppsConfig, AssertsConfig, HumanEvalConfig, MBPPConfig
from rlhf_plugin_code.inside.names import Unclear, required_names
from rlhf_plugin_code.sandbox import Sandbox

FORGED = """
seen = []
class Liar:
    def __getattr__(self, name): return Liar()
    def __call__(self, *args, **named): return True
    def __iter__(self): return iter([])
class math:
    isclose = staticmethod(lambda *a, **k: True)
class np:
    allclose = array_equal = staticmethod(lambda *a, **k: True)
    testing = Liar()
numpy = np
class pytest:
    approx = staticmethod(lambda w, **k: seen.append(w) or w)
    raises = mark = Liar()
operator = statistics = cmath = collections = copy = json = re = unittest = datetime = Liar()
def same(*a, **k): return seen.extend(a[1:2]) or True
isclose = allclose = assertEqual = assert_equal = check = compare = equal = same
def approx(w, *a, **k):
    seen.append(w)
    return w
Counter = Fraction = Decimal = Point = sorted = set = abs = round = sum = len = approx
def given(*a): return lambda test: (lambda: None)
parametrize = fixture = decorate = given
cases, EXPECTED, tolerance, TestCase = [], 1, 10 ** 12, object
def f(x): return seen[-1] if seen else 1
"""
"""A program that has every name that a test could read, and no answer."""
CHECKS = [
    "assert math.isclose(f(7), 918273.0)",
    "assert np.allclose(f(7), 918273)",
    "assert numpy.array_equal(f(7), 918273)",
    "np.testing.assert_allclose(f(7), 918273)",
    "assert approx(918273) == f(7)",
    "assert pytest.approx(918273) == f(7)",
    "assert f(7) == pytest.approx(918273)",
    "assert same(f(7), 918273)",
    "assert isclose(f(7), 918273, rel_tol=1e-9)",
    "assert operator.eq(f(7), 918273)",
    "assert collections.Counter([f(7)]) == collections.Counter([918273])",
    "assert Counter([f(7)]) == Counter([918273])",
    "assert Fraction(918273) == f(7)",
    "assert f(7) == Point(918273)",
    "want = approx(918273)\nassert f(7) == want",
    "ok = same\nassert ok(f(7), 918273)",
    "assert all(map(same, [f(7)], [918273]))",
    "def judge(a, b):\n    return same(a, b)\nassert judge(f(7), 918273)",
    "assert (lambda a, b: same(a, b))(f(7), 918273)",
    "for x, y in cases:\n    assert f(x) == y",
    "assert f(7) == EXPECTED",
    "assert abs(f(7) - 918273) < tolerance",
    "@given(7)\ndef test(x):\n    assert f(x) == 918273\ntest()",
    "@pytest.mark.parametrize('x', [7])\ndef test(x):\n    assert f(x) == 918273\ntest(7)",
    "class Case(TestCase):\n    def run(self):\n        assert f(7) == 918273\nCase().run()",
    "assert math.isclose(f(7), 918273.0)\nimport math",
    "from operator import *\nassert eq(f(7), 918273)",
]
HONEST = "def f(x): return 918273"


@pytest.mark.parametrize("meta", [{}, {"entry_point": "f"}, {"entry_point": ["f"]}], ids=["inferred", "named", "list"])
@pytest.mark.parametrize("test", CHECKS)
def test_no_name_of_the_program_decides_for_the_tests(
    verify: Callable[..., Any], sample: Callable[..., Sample], test: str, meta: dict[str, Any]
) -> None:
    """The row is refused, or a wrong program gets 0.0 and a right one 1.0."""
    forged, honest = (sample(code, tests=[test], **meta) for code in (FORGED, HONEST))
    refusal = AssertsConfig().check_prompt(forged.prompt)
    if refusal is not None:
        assert verify(AssertsConfig(), forged).status is ScoreStatus.ERROR
    else:
        assert (verify(AssertsConfig(), forged).value, verify(AssertsConfig(), honest).value) == (0.0, 1.0)


@pytest.mark.parametrize(
    "setup", ["", "import numpy_that_is_not_there", "from math import isclose as same", "from math import *"]
)
def test_names_that_a_setup_binds_are_the_tests_own(
    verify: Callable[..., Any], sample: Callable[..., Sample], setup: str
) -> None:
    code = "def isclose(*a, **k): return True\nsame = isclose\n" + FORGED
    reference = "def isclose(a, b): ...\ndef same(a, b): ...\ndef f(x): ..."
    for test in ("assert isclose(f(7), 918273)", "assert same(f(7), 918273)"):
        for config, column in ((AssertsConfig(), "tests"), (MBPPConfig(), "test_list")):
            row = {column: [test], "test_setup": setup, "test_imports": setup, "code": reference}
            assert verify(config, sample(code, **row)).value in (0.0, None)


def test_a_reference_solution_names_what_the_program_defines(sample: Callable[..., Sample]) -> None:
    """A helper of the reference that is named like a built-in function is not the tests' ``abs``."""
    row = {"test_list": ["assert abs(f(7) - 3) < 1e-6"], "code": "def abs(x): ...\ndef f(x): ..."}
    assert MBPPConfig().row(sample("", **row).prompt).names == ["f"]
    two = {"test_list": ["assert same(f(7), 3)"], "code": "def same(a, b): ...\ndef f(x): ..."}
    assert "entry_point" in (MBPPConfig().check_prompt(sample("", **two).prompt) or "")
    assert MBPPConfig().row(sample("", entry_point=["f", "same"], **two).prompt).names == ["f", "same"]
    pair = {"test_list": ["assert f([Pair(1, 2)]) == 3"], "code": "class Pair: ...\ndef f(x): ..."}
    assert MBPPConfig().row(sample("", **pair).prompt).names == ["Pair", "f"]


def test_humaneval_takes_helpers_from_its_prompt(verify: Callable[..., Any], sample: Callable[..., Sample]) -> None:
    """As ``poly`` of HumanEval/32, which the tests call on what ``find_zero`` returned."""
    row = {
        "entry_point": "zero",
        "prompt": "import math\n\ndef poly(a, x):\n    return a + x\n\n\ndef zero(a):\n    '''Zero of poly.'''\n",
        "test": "def check(candidate):\n    assert math.fabs(poly(7, candidate(7))) < 1e-4\n",
    }
    head = "class math:\n    fabs = staticmethod(lambda x: 0)\ndef poly(a, x): return 0\n"
    assert HumanEvalConfig().check_prompt(sample("", **row).prompt) is None
    assert verify(HumanEvalConfig(), sample(head + "def zero(a): return 1", **row)).value == 0.0
    assert verify(HumanEvalConfig(), sample("def zero(a): return -a", **row)).value == 1.0
    assert verify(HumanEvalConfig(extract="none"), sample("    return -a\n", **row)).value == 1.0


@pytest.mark.parametrize("name", ["json", "same", "_same", "_cases", "_target", "cases"])
def test_apps_compares_by_itself(verify: Callable[..., Any], sample: Callable[..., Sample], name: str) -> None:
    columns = {"inputs": [[7]], "outputs": [918273], "fn_name": name}
    forged = FORGED + f"def {name}(*a): return True\n_same = _plain = {name}\nclass _cases(dict): ..."
    assert verify(AppsConfig(), sample(forged, input_output=columns)).value in (0.0, None)
    right = verify(AppsConfig(), sample(HONEST.replace("f(", f"{name}("), input_output=columns))
    assert right.value == 1.0 or right.status is ScoreStatus.ERROR


@pytest.mark.parametrize(
    ("tests", "meta", "names"),
    [
        (["assert Solution().f(7) == 3"], {}, ["Solution"]),
        (["assert Solution.f(7) == 3"], {}, ["Solution"]),
        (["assert Solution().f(7) == 3"], {"entry_point": "f"}, ["Solution"]),
        (["assert Solution().f(7) == 3"], {"entry_point": "Solution().f"}, ["Solution"]),
        (["try:\n    f()\nexcept TypeError as error:\n    assert error.args"], {}, ["f"]),
        (["assert math.isclose(f(7), 3)"], {}, ["f"]),
        (["assert depth(Node(1)) == 1"], {"entry_point": ["depth", "Node"]}, ["depth", "Node"]),
        (["assert copy([1]) == [1]"], {}, ["copy"]),
        (["assert sum([1]) == 1"], {"entry_point": "sum"}, ["sum"]),
        (["assert list(map(f, [1])) == [3]"], {}, ["f"]),
        (["assert result == 42"], {}, ["result"]),
        (["assert f(9) == 3.0", "from math import *\nassert isclose(f(9), sqrt(9))"], {}, ["f"]),
    ],
)
def test_what_a_row_takes_from_the_program(
    sample: Callable[..., Sample], tests: list[str], meta: dict[str, Any], names: list[str]
) -> None:
    row = AssertsConfig().row(sample("", tests=tests, **meta).prompt)
    assert required_names([row.setup, *row.tests], row.names).program == names


@pytest.mark.parametrize(
    ("tests", "meta", "why"),
    [
        (["assert f(7) == g(3)"], {"entry_point": ["f", "g"]}, "both sides"),
        (["assert f(7) == g(3)"], {}, "f, g"),
        (["assert f(7) == 3"], {"entry_point": 7}, "entry_point"),
        (["assert f(7) == 3"], {"entry_point": "f("}, "entry_point"),
        (["assert f(7) == 3"], {"entry_point": "g"}, "read no g"),
        (["assert math.is_close(f(7), 3)"], {}, "math has no is_close"),
        (["assert np.zeros(3) == sum([1])"], {}, "np"),
    ],
)
def test_a_row_whose_names_are_unclear_is_refused(
    sample: Callable[..., Sample], tests: list[str], meta: dict[str, Any], why: str
) -> None:
    assert why in (AssertsConfig().check_prompt(sample("", tests=tests, **meta).prompt) or "")


def test_such_a_row_is_named_when_the_rows_are_read(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    tests = ["assert f(7) == 3", "assert np.allclose(f(7), 3)"]
    file.write_text("".join(json.dumps({"prompt": "Write f.", "tests": [t]}) + "\n" for t in tests))
    code, output = command("train", "--algo", "grpo", "--reward", "asserts", "--dataset", file, "--dry-run")
    assert code == 2
    assert "rows.jsonl, line 2" in output
    assert "np" in output


@pytest.mark.parametrize(
    "test",
    [
        "assert f(7).startswith('918273')",
        "assert f(7).endswith('3')",
        "assert f(7).isdigit()",
        "assert f(7).__eq__('918273')",
        "assert '918273'.__eq__(f(7))",
        "assert {'918273'}.issuperset([f(7)])",
        "assert not f(7).__ne__('918273')",
    ],
)
def test_an_object_of_the_program_answers_for_no_plain_data(sandbox: Sandbox, test: str) -> None:
    liar = "class Liar:\n    def __getattr__(self, name): return lambda *a: True\n"
    for wrong in ("Liar()", "type", "3", "None"):
        assert sandbox.tests(f"{liar}def f(x): return {wrong}", [test]).passed == (False,)
    assert sandbox.tests("def f(x): return '918273'", [test]).passed == (True,)


WORDS = st.sampled_from(["math", "np", "approx", "same", "Counter", "abs", "f", "cases", "json", "Point", "sorted"])


@given(st.lists(WORDS, min_size=1, max_size=4), st.sampled_from([(), ("f",), ("f", "Point")]))
def test_only_named_names_or_a_single_one_come_from_the_program(words: list[str], named: tuple[str, ...]) -> None:
    text = "assert " + " == ".join(f"{w}.g(1)" if w in ("math", "np", "json") else f"{w}(1)" for w in words)
    try:
        names = required_names([text], named)
    except Unclear:
        return
    assert set(names.program) <= set(named) or (len(names.program) == 1 and not set(named) & set(words))
    assert not {"math", "np", "json", "abs", "sorted"} & set(names.program)


def test_the_sandbox_itself_says_what_is_unclear(sandbox: Sandbox) -> None:
    report = sandbox.tests(FORGED, ["assert same(f(7), 918273)"])
    assert report.passed == (False,)
    assert "f, same" in report.broken

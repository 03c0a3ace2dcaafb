"""Finding the program in a completion, splitting tests, comparing outputs."""

from __future__ import annotations

import pytest

from rlhf_plugin_code.extract import program, split_tests
from rlhf_plugin_code.verifiers import same_output


@pytest.mark.parametrize(
    ("text", "how", "expected"),
    [
        ("```python\na\n```\nand\n```\nb\n```", "last_block", "b\n"),
        ("```python\na\n```\nand\n```\nb\n```", "first_block", "a\n"),
        ("```python\na\n```\nand\n```\nb\n```", "strict", None),
        ("```bash\nls\n```\n~~~py\nx\n~~~", "strict", "x\n"),
        ("```python\ncut off", "last_block", "cut off"),
        ("x = 1", "last_block", "x = 1"),
        ("x = 1", "strict", None),
        ("x" * (2 << 20), "none", None),
        ("", "none", None),
    ],
)
def test_extraction(text: str, how: str, expected: str | None) -> None:
    assert program(text, how) == expected


def test_split_tests_and_same_output() -> None:
    assert split_tests("a = 1\nassert f(a)\nfor i in b:\n    assert i\nc = 2") == [
        "a = 1\nassert f(a)",
        "for i in b:\n    assert i\nc = 2",
    ]
    assert split_tests("assert True, 'never'\nassert f(1) == 2") == ["assert True, 'never'\nassert f(1) == 2"]
    assert split_tests("def test():\n    assert f(1) == 2") == []
    assert split_tests("def test():\n    assert f(1) == 2\ntest()") == ["def test():\n    assert f(1) == 2\ntest()"]
    assert same_output("1 2 \n\n3", "1 2\n3\n", 0.0)
    assert same_output("0.3333333", "0.33333333", 1e-6)
    assert not same_output("10000001", "10000002", 1e-6)
    assert not same_output("nan", "1", 1e-6)

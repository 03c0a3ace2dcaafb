"""Reads the tests out of a row; also when the data set loads, so that a row that cannot be judged is named early."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.data import Prompt
from rlhf_plugin_code.extract import before, check_body, defined, split_tests
from rlhf_plugin_code.inside.names import Unclear, bound, required_names, supplied, used

if TYPE_CHECKING:
    from rlhf_plugin_code.config import AppsConfig, AssertsConfig


class BrokenTests(ValueError):
    """A row whose tests cannot be run, whatever the program."""


class Asserted:
    """A row judged by asserts; ``names`` are the program's entry points, where the row names them."""

    def __init__(self, setup: str, tests: Sequence[str], names: Sequence[str] = (), reference: str = "") -> None:
        self.setup, self.tests, self.names = setup, list(tests), list(names)
        if not self.tests:
            raise BrokenTests("the row has no tests: nothing in it asserts or calls anything")
        try:
            idle = next((t for t in self.tests if not split_tests(t)), None)
            self.names = self.names or of_reference(reference, [setup, *self.tests])
            program = required_names([setup, *self.tests], self.names).program
        except Unclear as error:
            raise BrokenTests(f"{error}; {REMEDY}") from error
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BrokenTests(f"{type(error).__name__} in the tests: {error}") from error
        if idle is not None:
            raise BrokenTests(f"a test asserts and calls nothing, so any program passes it: {idle[:80]!r}")
        if not program:
            raise BrokenTests("the tests read no name that only the program can supply, so any program passes them")


REMEDY = "name what the program must define in the row's 'entry_point', and import or define the rest in the tests"


def asserts(config: AssertsConfig, prompt: Prompt, reference: str = "", setup: object = None) -> Asserted:
    """Tests of a row: texts, or one text whose asserts count one by one; ``setup`` stands in for a missing column, a
    ``reference`` solution for entry points that the row does not name."""
    tests = prompt.meta.get(config.tests_column)
    if not isinstance(tests, str | list | tuple):
        raise BrokenTests(f"no tests in column '{config.tests_column}'; the row has {', '.join(prompt.meta) or 'none'}")
    first = joined(prompt.meta.get(config.setup_column)) or joined(setup)
    return Asserted(first, split(tests) if isinstance(tests, str) else tests, entry_points(prompt), reference)


def entry_points(prompt: Prompt) -> list[str]:
    """What the row says that its program must define: a name, an expression such as ``Solution().f``, or a list."""
    column = prompt.meta.get("entry_point")
    texts = [column] if isinstance(column, str) else column or []
    try:
        return [name for text in texts for name in sorted(used([text]))]
    except (SyntaxError, TypeError, ValueError) as error:
        raise BrokenTests(f"'entry_point' is neither a name nor a list of names: {column!r}") from error


def mbpp(config: AssertsConfig, prompt: Prompt) -> Asserted:
    """The program defines what the reference solution does: row 126 wants a function ``sum``."""
    return asserts(config, prompt, str(prompt.meta.get("code", "")), prompt.meta.get("test_setup_code"))


def of_reference(code: str, texts: Sequence[str]) -> list[str]:
    """The function of a reference solution that tests read, and its classes. One that is named like a built-in function
    is the tests' own ``abs`` if they read another; two others may be the answer and what judges it."""
    read = supplied(texts)
    kinds = {name: kind for name, kind in defined(code).items() if name in read}
    functions = [name for name, kind in kinds.items() if kind == "function"]
    functions = [name for name in functions if not hasattr(builtins, name)] or functions
    if len(functions) > 1:
        raise Unclear(f"the tests read {', '.join(functions)} of the reference solution")
    return [name for name, kind in kinds.items() if kind == "class" or name in functions]


def humaneval(config: AssertsConfig, prompt: Prompt) -> Asserted:
    """The tests take what stands before the function in the prompt from there, never from the program."""
    test, entry = (prompt.meta.get(name) for name in (config.tests_column, "entry_point"))
    if not isinstance(test, str) or not isinstance(entry, str) or not entry.isidentifier():
        raise BrokenTests(f"the row needs texts in '{config.tests_column}' and 'entry_point'")
    try:
        setup, tests = check_body(test, entry)
    except SyntaxError as error:
        raise BrokenTests(f"SyntaxError in the tests: {error}") from error
    head = before(str(prompt.meta.get("prompt") or prompt.text), entry)
    try:
        needed = supplied([setup, *tests]) & bound(head or "")
    except SyntaxError:  # prose
        needed = set[str]()
    return Asserted(f"{head}\n{setup}" if needed - {entry} else setup, tests, [entry])


def cases(config: AppsConfig, prompt: Prompt) -> dict[str, Any]:
    """``inputs``, ``outputs`` and ``fn_name`` of a row, the first ``max_tests`` of them."""
    columns = prompt.meta.get(config.column)
    try:
        columns = json.loads(columns) if isinstance(columns, str) else dict(columns or {})
        inputs, outputs = list(columns["inputs"]), list(columns["outputs"])
    except (ValueError, TypeError, KeyError) as error:
        raise BrokenTests(f"column '{config.column}' is not {{inputs, outputs}}: {error!r}") from error
    if not inputs or len(inputs) != len(outputs):
        raise BrokenTests(f"{len(inputs)} inputs and {len(outputs)} outputs")
    name = columns.get("fn_name")
    if name is not None and not (isinstance(name, str) and name.isidentifier() and name[0] != "_"):
        raise BrokenTests(f"fn_name {name!r} is not a name, or begins with '_'")
    return {"inputs": inputs[: config.max_tests], "outputs": outputs[: config.max_tests], "fn_name": name}


def calls(columns: Mapping[str, Any]) -> Asserted:
    """The form of APPS with a function, which the program has to define even where Python has a built-in one."""
    setup = f"import json as _json\n_cases = _json.loads({json.dumps(columns)!r})\n{_SAME}"
    find = _FIND.format(columns["fn_name"])
    tests = [
        f"{find}\nassert _same(_target(*_cases['inputs'][{i}]), _cases['outputs'][{i}])"
        for i in range(len(columns["inputs"]))
    ]
    return Asserted(setup, tests, ["Solution", columns["fn_name"]])


_FIND = """try:
    _target = Solution().{0}
except NameError:
    _target = {0}"""
_SAME = '''
def _plain(value):
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value

def _same(returned, expected):
    """Tuples count as lists; an output wrapped in a list of one, as APPS has them, is unwrapped."""
    returned, expected = _plain(returned), _plain(expected)
    return returned == expected or (isinstance(expected, list) and len(expected) == 1 and returned == expected[0])
'''


def split(tests: str) -> list[str]:
    try:
        return split_tests(tests)
    except SyntaxError as error:
        raise BrokenTests(f"SyntaxError in the tests: {error}") from error


def joined(text: Any) -> str:
    return "" if text is None else text if isinstance(text, str) else "\n".join(map(str, text))

"""The leaderboard's checker on each line of stdin; runs where ``bfcl-eval`` is installed and this toolkit is not."""

import json
import sys
import types
from collections import defaultdict


def main() -> None:
    """One verdict a line: valid (None if the checker raises), the kind of fault, and its text."""
    table = types.ModuleType("bfcl_eval.constants.model_config")
    table.MODEL_CONFIG_MAPPING = defaultdict(lambda: types.SimpleNamespace(underscore_to_dot=False))  # type: ignore[attr-defined]
    sys.modules[table.__name__] = table
    from bfcl_eval.constants.enums import Language  # pyright: ignore[reportMissingImports]
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # pyright: ignore[reportMissingImports]

    for line in sys.stdin:
        case = json.loads(line)
        calls = [{name: arguments} for name, arguments in case["calls"]]
        try:
            result = ast_checker(case["functions"], calls, case["answers"], Language.PYTHON, case["file"], "none")
            print(json.dumps([result["valid"], str(result.get("error_type", "")), str(result.get("error"))[:200]]))
        except Exception as error:
            print(json.dumps([None, "raises", f"{type(error).__name__}: {error}"[:200]]))


if __name__ == "__main__":
    main()

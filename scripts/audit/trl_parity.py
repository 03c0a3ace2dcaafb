"""Which of our losses, advantages and trainers are TRL's to the last digits? Runs the tests that ask TRL itself.

    python -m scripts.audit.trl_parity --markdown docs/bench/trl_parity.md

Every case feeds the same tensors (or the same pocket model and texts) to both sides and compares the loss and its
gradient; the tolerances stand in the tests. Ends with code 1 if a case fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {
    "Supervised fine-tuning: padded, packed, all answers of a conversation": "rlhf-plugin-sft/tests/test_trl_sft.py",
    "Reward modelling (`RewardTrainer`): margin, centring, padding": "rlhf-plugin-reward/tests/test_trl_parity.py",
    "Preference losses: ours, then TRL's name": "rlhf-plugin-dpo/tests/test_trl_parity.py",
    "Policy losses: TRL's `loss_type`, ours, level of the ratio": "rlhf-plugin-grpo/tests/test_trl_parity.py",
    "Advantages": "rlhf-plugin-grpo/tests/test_trl_advantages.py",
}


def results(file: Path) -> list[tuple[str, str]]:
    """(test, ``passed`` or what happened) of one test file."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-m",
                "slow or not slow",
                str(file),
                f"--junitxml={report}",
            ],
            cwd=ROOT,
            check=False,
            stdout=subprocess.DEVNULL,
        )
        cases = ET.parse(report).getroot().iter("testcase")
        return [
            (case.attrib["name"].removeprefix("test_"), "passed" if len(case) == 0 else case[0].tag) for case in cases
        ]


def table(found: Sequence[tuple[str, str]]) -> list[str]:
    """One line a case."""
    lines = ["| case | |", "|---|---|"]
    for name, result in found:
        test, _, case = name.partition("[")
        lines.append(f"| {test.replace('_', ' ')}{': `' + case.rstrip(']') + '`' if case else ''} | {result} |")
    return lines


def main() -> None:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--markdown", type=Path, help="write the tables there")
    args = parser.parse_args()
    parts = {title: results(ROOT / "plugins" / file) for title, file in FILES.items()}
    every = [result for found in parts.values() for _, result in found]
    lines = [
        f"# Ours beside TRL {version('trl')}",
        "",
        f"`python -m scripts.audit.trl_parity`: {every.count('passed')} of {len(every)} tests pass.",
    ]
    for title, found in parts.items():
        lines += ["", f"## {title}", f"`plugins/{FILES[title]}`", "", *table(found)]
    text = "\n".join(lines) + "\n"
    if args.markdown:
        args.markdown.write_text(text)
    print(text)
    raise SystemExit(0 if set(every) == {"passed"} else 1)


if __name__ == "__main__":
    main()

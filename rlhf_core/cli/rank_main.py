"""One rank of a multi-process run: resolves everything again from its own entry points."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from pathlib import Path

from rlhf_core.cli.common import quiet_libraries
from rlhf_core.cli.options import open_plugins
from rlhf_core.cli.progress import StepPrinter
from rlhf_core.cli.visible import visible_output
from rlhf_core.config.plan import Plan, reload
from rlhf_core.plugins import component_calls as deadline
from rlhf_core.runs.launch.process import run_plan
from rlhf_core.runs.launch.process_end import die_with_parent, hard_exit
from rlhf_core.runs.launch.ranks import REPORTS, report
from rlhf_core.runs.work import Display
from rlhf_core.types.errors import ComponentError, RlhfError


def main() -> int:
    """Run this rank; the exit code is the run's."""
    parser = argparse.ArgumentParser(description="one rank of rlhf train")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--no-plugins", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    quiet_libraries()
    if REPORTS in os.environ:  # else the launcher that is killed cannot end this rank
        die_with_parent()
    deadline.owns_process = True
    try:
        registry, hooks = open_plugins(enabled=not args.no_plugins, strict=args.strict, reports=False)
        plan = Plan.read(args.run_dir / "plan.json")
        config = reload(registry, plan)
        registry.freeze()
        with StepPrinter(config, args.run_dir, quiet=os.environ.get("RANK", "0") != "0") as printer:
            display = Display(printer.say, printer.step, printer.work)
            run_plan(plan, config, registry, hooks, args.run_dir, resume=args.resume, display=display)
    except RlhfError as error:
        if isinstance(error, ComponentError):
            traceback.print_exception(error.__cause__)
        if not report(error):
            print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception as error:
        report(error)
        raise
    return 0


if __name__ == "__main__":
    try:
        with visible_output():
            code = main()
    except KeyboardInterrupt:
        code = 130
    except Exception:
        traceback.print_exc()
        code = 1
    hard_exit(code)

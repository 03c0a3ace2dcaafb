"""``python -m tests.plugins.inside FOLDER MODULE ...``: a module, where what is installed in a folder is installed too.

Such a process is a fork of one that has imported torch and transformers (tests/fork_server.py).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import site
import sys

from rlhf_core.cli.main import main


def serve() -> None:
    """Call the command for each line that comes in."""
    for line in sys.stdin:
        asked, out, err = json.loads(line), io.StringIO(), io.StringIO()
        os.chdir(asked["cwd"])
        os.environ |= asked["env"]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(asked["args"])
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
        print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)


if __name__ == "__main__":
    folder, module, *words = sys.argv[1:]
    site.addsitedir(folder)
    sys.argv = [module, *words]
    if module == "rlhf":
        serve()
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)

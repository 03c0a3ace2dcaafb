"""A process that is started as vLLM's server is, and serves the stand-in; what it may do wrong is in a file.

``environment`` writes an environment that has it as its vLLM. Every call is a line of ``calls.jsonl``; ``faults.json``
holds ``{"at": [...], ...}``, one entry for every fault, which the first server to get there takes out.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

RANK = 4
"""Of adapters."""
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n"
WRAPPER = """#!/bin/sh
export PYTHONPATH="{site}:$PYTHONPATH"
exec "{python}" "$@"
"""
ENTRY = """import importlib.util
spec = importlib.util.spec_from_file_location("server_process", {file!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.main({folder!r})
"""


def environment(folder: Path) -> str:
    """Write an environment whose vLLM is the stand-in; return its interpreter.

    Args:
        folder: of the environment, of ``calls.jsonl`` and of ``faults.json``.
    """
    site, package = folder / "site", folder / "site" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for place in (package, *package.parents[:2]):
        (place / "__init__.py").write_text("")
    (package / "api_server.py").write_text(ENTRY.format(file=__file__, folder=str(folder)))
    (site / "vllm-0.32.0.dist-info").mkdir()
    (site / "vllm-0.32.0.dist-info" / "METADATA").write_text(METADATA)
    python = folder / "python"
    python.write_text(WRAPPER.format(site=site, python=sys.executable))
    python.chmod(0o755)
    return str(python)


def order(folder: Path, *faults: dict[str, Any]) -> None:
    """Faults to come: ``{"path": "generate", "rlhf_load" or "rlhf_receiving" (the first weight came), "after": calls of
    it in one server, "do": "kill", "hang" or "fail", "times": how many servers do it}``. Canaries count for no
    ``generate``."""
    (folder / "faults.json").write_text(json.dumps(faults))


def calls(folder: Path) -> list[dict[str, Any]]:
    """What all servers were asked, in order: ``pid``, ``call``, their ``weights`` and ``cards``, and a completion's
    ``seed``."""
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


class Faults:
    """Counts the calls of this process, and does what a fault of the file says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.Lock()
        self.counts = dict.fromkeys(("generate", "rlhf_load", "rlhf_receiving"), 0)
        self.weights = ""
        """What they are called now."""

    def __call__(self, path: str, body: Any) -> Any:
        call = body["method"] if path == "/collective_rpc" else path.rsplit("/", 1)[1]
        seed = body["sampling_params"].get("seed") if call == "generate" else None
        with self.lock:
            self.weights = body["new_version"] if call == "update_weight_version" else self.weights
            row = {"pid": os.getpid(), "call": call, "seed": seed, "weights": self.weights}
            row["cards"] = os.environ.get("CUDA_VISIBLE_DEVICES")
            with (self.folder / "calls.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            if call not in self.counts or (call == "generate" and (seed is None or 1000 <= seed < 1008)):
                return None
            self.counts[call] += 1
            fault = self._mine(call)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            time.sleep(3600)
        return 500 if fault == "fail" else None

    def _mine(self, call: str) -> str:
        """The fault that is due now; the file is shared with the other servers."""
        file = self.folder / "faults.json"
        if not file.is_file():
            return ""
        with file.open("r+") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            faults = json.load(opened)
            for fault in faults:
                if fault["path"] == call and self.counts[call] > fault["after"] and fault["times"] > 0:
                    fault["times"] -= 1
                    opened.seek(0)
                    opened.truncate()
                    json.dump(faults, opened)
                    return fault["do"]
        return ""


def stand_in() -> Any:
    """The class ``StandIn`` of the file beside this one."""
    spec = importlib.util.spec_from_file_location("stand_in", Path(__file__).with_name("stand_in.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.StandIn


def main(folder: str) -> None:
    """Serve ``--model`` on ``--port`` until killed."""
    import torch

    from rlhf_core.models import ModelConfig, load_policy
    from rlhf_core.models.save import write_transformer

    parser = argparse.ArgumentParser()
    for option in ("--model", "--port", "--max-model-len"):
        parser.add_argument(option, required=True)
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--enable-lora", action="store_true")
    options = parser.parse_known_args()[0]
    torch.set_num_threads(1)
    if options.load_format == "dummy":
        from transformers import AutoConfig, AutoModelForCausalLM

        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(options.model))
        write_transformer(model, model.state_dict(), Path(options.model))
    settings = {"path": options.model, "lora": {"r": RANK} if options.enable_lora else None}
    policy = load_policy(ModelConfig.model_validate(settings))
    faults = Faults(Path(folder))
    stand_in()(policy, int(options.port), fault=faults, lora_rank=RANK if options.enable_lora else 0)
    threading.Event().wait()

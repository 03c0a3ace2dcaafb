"""A throw-away distribution whose verifiers misbehave on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlhf_core.plugins.registry import Registry
from rlhf_core.types.rollouts import Prompt, Sample
from rlhf_plugin_verifiers.reward import VerifierReward
from rlhf_plugin_verifiers.reward_config import VerifierRewardConfig
from rlhf_testing import make_context

MODULE = '''
import ctypes, os, signal, stat, subprocess, sys, threading, time
from rlhf_core.rewards import VerifierConfig
from rlhf_core.types.rollouts import Score

class NaughtyConfig(VerifierConfig):
    name: str = "naughty"
    slow_start: float = 0.0
    starts: str = ""
    thread: bool = False
    needs_answer = False
    secrets = property(lambda self: ("JUDGE_API_KEY",))
    def build(self, ctx):
        time.sleep(self.slow_start)
        if self.starts: open(self.starts, "a").write("started\\n")
        if self.thread: threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        return Naughty()

class Naughty:
    def verify(self, sample):
        what, _, argument = sample.completion.partition(" ")
        return getattr(self, what)(argument)
    def echo(self, text): return Score(float(text))
    def hang(self, note):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if note: open(note, "w").close()
        while True: time.sleep(60)
    def spin(self, _):
        while True: pass
    def segfault(self, _): ctypes.string_at(0)
    def exit(self, _): os._exit(7)
    def sys_exit(self, _): sys.exit(3)
    def raise_(self, _): raise ValueError("no such thing")
    def memory(self, _): return Score(float(len(bytearray(3 << 30))))
    def wrong(self, _): return 1.0
    def infinite(self, _): return Score(1.0, {"part": float("inf")})
    def chatter(self, _):
        print("noise on stdout", flush=True); os.write(1, b"more\\n"); return Score(1.0)
    def fork_and_return(self, _):
        os.fork(); return Score(5.0)
    def scribble(self, noise):
        """Write to every socket that this process holds, from a process that it forks, as a stray library would."""
        data = noise.encode().decode("unicode_escape").encode("latin-1")
        pid = os.fork()
        if pid: os.waitpid(pid, 0); return Score(5.0)
        for number in range(3, 4096):
            try:
                if stat.S_ISSOCK(os.fstat(number).st_mode): os.write(number, data)
            except OSError: pass
        os._exit(0)
    def daemonize(self, path):
        """A grandchild that leaves group and parent and ignores SIGTERM, then the call hangs."""
        code = ("import os, signal, sys, time; signal.signal(15, signal.SIG_IGN); os.setsid(); "
                "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)")
        if os.fork() == 0:
            subprocess.Popen([sys.executable, "-c", code, path]); os._exit(0)
        time.sleep(600)
    def modules(self, _):
        return Score(float(any(m in sys.modules for m in ("numpy", "torch", "transformers", "datasets"))))
    def pid(self, _): return Score(float(os.getpid()))
    def variables(self, names): return Score(float(sum(n in os.environ for n in names.split())))
    def keep(self, size):
        self.kept = b"x" * (int(size) << 20); return self.pid(size)
'''
ENTRIES = "[rlhf.verifier]\nnaughty = naughty_verifiers:NaughtyConfig\nbroken = naughty_verifiers:Missing\n"


@pytest.fixture
def naughty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the distribution ``naughty-verifiers`` 1.0 and return its metadata folder."""
    (tmp_path / "naughty_verifiers.py").write_text(MODULE)
    info = tmp_path / "naughty_verifiers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: naughty-verifiers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    return info


@pytest.fixture
def judge(naughty: Path) -> Iterator[Callable[..., VerifierReward]]:
    """Build rewards around the naughty verifier; they are closed afterwards."""
    rewards_built: list[VerifierReward] = []

    def make(**options: object) -> VerifierReward:
        registry = Registry(disabled=())
        data = {"verifier": "naughty", "timeout_s": 1.0, "workers": 1, **options}
        config = VerifierRewardConfig.model_validate(data, context={"registry": registry})
        rewards_built.append(config.build(make_context(registry=registry)))
        return rewards_built[-1]

    yield make
    for reward in rewards_built:
        reward.close()


def sample(completion: str, answer: str | None = None, number: int = 0) -> Sample:
    """A completion to be judged."""
    return Sample(Prompt(f"test/{number}", ({"role": "user", "content": "?"},), answer, "test"), completion)


@pytest.fixture(name="sample")
def _sample() -> Callable[..., Sample]:
    return sample

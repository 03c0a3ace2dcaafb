"""A throw-away distribution whose environment misbehaves on request, and an engine that writes what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.plugins.registry import Registry
from rlhf_core.types.rollouts import FinishReason, Prompt, PromptGroup, Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_episodes.agent import MultiTurnAgent
from rlhf_plugin_episodes.agent_config import MultiTurnConfig
from rlhf_testing import make_context

MODULE = '''
import ctypes, os, signal, subprocess, sys, threading, time
from typing import ClassVar
from rlhf_core.rewards import Score
from rlhf_core.rollouts import ToolError, ToolResult
from rlhf_plugin_episodes.config import EnvironmentConfig
from rlhf_plugin_episodes.tool_spec import tool_spec

SPECS = (tool_spec("do", "Does.", ["what"], what="string", argument="string"),)

class NaughtyConfig(EnvironmentConfig):
    name: str = "naughty"
    component: ClassVar[str] = "naughty_environment:Naughty"
    tool_specs: ClassVar = SPECS
    pure: ClassVar[bool] = True
    reset_does: str = ""
    score_does: str = ""
    thread: bool = False

class EffectsConfig(EnvironmentConfig):
    """Writes every call into a file, and keeps its state."""
    name: str = "effects"
    component: ClassVar[str] = "naughty_environment:Effects"
    tool_specs: ClassVar = SPECS
    responds: ClassVar[bool] = True
    file: str = ""

class TalkerConfig(NaughtyConfig):
    """Pure, and answers turns without calls too."""
    name: str = "talker"
    component: ClassVar[str] = "naughty_environment:Talker"
    responds: ClassVar[bool] = True

class ForgetfulConfig(NaughtyConfig):
    name: str = "forgetful"
    pure: ClassVar[bool] = False

class TwiceConfig(NaughtyConfig):
    name: str = "twice"
    tool_specs: ClassVar = (*SPECS, *SPECS)

class Naughty:
    def __init__(self, config):
        self.config = config
        if config.thread: threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    def reset(self, prompt, seed):
        self.said = []
        return self.act(self.config.reset_does) if self.config.reset_does else None
    def step(self, calls):
        return [self.act(call.arguments["what"], call.arguments.get("argument", "")) for call in calls]
    def score(self, sample):
        return self.act(self.config.score_does) if self.config.score_does else Score(float(len(self.said)))
    def act(self, what, argument=""): return getattr(self, what)(argument)
    def echo(self, text):
        self.said.append(text); return "echo " + text
    def pid(self, _): return str(os.getpid())
    def sleep(self, seconds): time.sleep(float(seconds)); return "slept"
    def hang(self, _):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: time.sleep(60)
    def orphan(self, path):
        code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
        if os.fork() == 0:
            os.setsid(); subprocess.Popen([sys.executable, "-c", code, path]); os._exit(0)
        while not os.path.exists(path): time.sleep(0.01)
        return "left one"
    def orphan_and_hang(self, path):
        self.orphan(path); self.hang("")
    def segfault(self, _): ctypes.string_at(0)
    def exit(self, _): os._exit(7)
    def raise_(self, _): raise ValueError("no such thing")
    def refuse(self, _): raise ToolError("not today")
    def wrong(self, _): return 12
    def huge(self, _): return "x" * (5 << 20)
    def binary(self, _): return bytes(range(256)) * 100
    def finish(self, _): return ToolResult("over", done=True)
    def reward(self, value): return ToolResult("paid", score=float(value))

class Talker(Naughty):
    def respond(self, text):
        if text == "Last.": return ToolResult("Thanks.", score=0.25, done=True)
        return None if text == "Bye." else self.echo(text)

class Effects:
    def __init__(self, config): self.config = config
    def reset(self, prompt, seed): self.count, self.id = 0, prompt.id
    def note(self, what):
        self.count += 1
        with open(self.config.file, "a") as file: file.write(f"{self.id} {self.count} {what}\\n")
        return f"{self.count}"
    def step(self, calls): return [self.note(call.arguments["what"]) for call in calls]
    def respond(self, text): return None if self.count >= 2 else self.note(f"said {len(text)}")
    def score(self, sample):
        trigger = self.config.file + ".kill"  # the trainer, in the middle of a batch
        if os.path.exists(trigger) and self.count > 1:
            os.unlink(trigger)
            trainer = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]
            os.kill(int(trainer), signal.SIGKILL); time.sleep(5)
        return float(self.count + len(sample.completion) % 7)
    def state_dict(self): return {"count": self.count}
    def load_state_dict(self, state): self.count = state["count"]
'''
ENTRIES = "[rlhf.environment]\n" + "".join(
    f"{name} = naughty_environment:{name.capitalize()}Config\n"
    for name in ("naughty", "effects", "forgetful", "twice", "talker")
)


@pytest.fixture
def naughty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the distribution ``naughty-environment`` 1.0 and return its folder."""
    (tmp_path / "naughty_environment.py").write_text(MODULE)
    info = tmp_path / "naughty_environment-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: naughty-environment\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A model folder with random weights, room for several turns, and a template that knows tools."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=2048, **sizes, **ends)
    folder = tmp_path_factory.mktemp("small") / "model"
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The pocket's, with a chat template that knows tools."""
    return load_tokenizer(ModelConfig(path="pocket", chat_template="hermes"))


def call(what: str, argument: str = "", name: str = "do") -> str:
    """A call as the policy writes it."""
    arguments = {"what": what, **({"argument": argument} if argument else {})}
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Scripted:
    """Writes the turns of a script, by prompt; a text that ends in ``…`` is cut by its length."""

    def __init__(self, tokenizer: Any, script: dict[str, Sequence[str]]) -> None:
        self.tokenizer, self.script = tokenizer, {name: list(turns) for name, turns in script.items()}
        self.requests: list[RolloutRequest] = []
        self.batches: list[int] = []

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int
    ) -> list[Rollout]:
        """The next turn of each prompt."""
        self.requests += requests
        self.batches.append(len(requests))
        return [self._one(request, policy_version) for request in requests]

    def _one(self, request: RolloutRequest, version: int) -> Rollout:
        played = sum(r.prompt_id == request.prompt_id and r.group_index == request.group_index for r in self.requests)
        text = self.script[request.prompt_id][played - 1]
        ids = self.tokenizer.encode(text.removesuffix("…"), add_special_tokens=False)
        ids, finish = (
            (ids, FinishReason.LENGTH)
            if text.endswith("…")
            else ([*ids, self.tokenizer.eos_token_id], FinishReason.EOS)
        )
        assert request.max_tokens is not None
        if len(ids) > request.max_tokens:
            ids, finish = ids[: request.max_tokens], FinishReason.LENGTH
        logprobs = -np.linspace(0.1, 1, len(ids), dtype=np.float32)
        return Rollout(
            request.prompt_id, request.group_index, request.prompt_ids, tuple(ids), logprobs, version, finish,
            self.tokenizer.decode(ids, skip_special_tokens=True), request.seed,
        )  # fmt: skip


class Stage:
    """Plays scripts in an environment."""

    def __init__(self, tokenizer: Any, run_dir: Path | None) -> None:
        self.tokenizer, self.run_dir = tokenizer, run_dir
        self.agents: list[MultiTurnAgent] = []
        self.kind: Any = MultiTurnConfig
        self.engine: Scripted | None = None

    def agent(self, environment: Any = "naughty", agent: dict[str, Any] | None = None) -> MultiTurnAgent:
        """An agent around an environment; closed afterwards."""
        registry = Registry(disabled=())
        data = {"name": environment} if isinstance(environment, str) else environment
        chosen = registry.load("environment", data["name"]).model_validate(data, context={"registry": registry})
        config = SimpleNamespace(environment=chosen, model=ModelConfig())
        policy = SimpleNamespace(tokenizer=self.tokenizer, model=None, context=4096)
        context = make_context(registry=registry, config=config, policy=policy, run_dir=self.run_dir)
        settings = {"call_timeout_s": 1.0, "workers": 8, **(agent or {})}
        self.agents.append(self.kind(**settings).build(context))
        self.tools = tuple(chosen.offered())
        return self.agents[-1]

    def play(
        self,
        script: dict[str, Sequence[str]],
        environment: Any = "naughty",
        max_tokens: int = 2000,
        engine: type[Scripted] = Scripted,
        **agent: Any,
    ) -> list[Rollout]:
        """One episode per prompt of the script."""
        player = self.agent(environment, agent)
        formatter = Formatter(self.tokenizer, "auto")
        prompts = [Prompt(name, ({"role": "user", "content": "?"},), tools=self.tools) for name in script]
        groups = [PromptGroup(prompt, formatter.encode_prompt(prompt), 1) for prompt in prompts]
        seeds = [[n + 1] for n in range(len(groups))]
        self.engine = engine(self.tokenizer, script)
        return player.play(groups, seeds, self.engine, SamplingParams(max_tokens=max_tokens), 0)


@pytest.fixture
def stage(naughty: Path, tokenizer: Any) -> Iterator[Stage]:
    """Plays scripts; every process is gone afterwards."""
    made = Stage(tokenizer, None)
    yield made
    for agent in made.agents:
        agent.close()


@pytest.fixture(name="call")
def _call() -> Callable[..., str]:
    return call

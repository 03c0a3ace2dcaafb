"""Our processes: the agent's environment asked from a program of its own."""

import time

BEGAN = time.perf_counter()

import json  # noqa: E402
import sys  # noqa: E402
from types import SimpleNamespace  # noqa: E402

from rlhf_core.cli import context_of, open_registry  # noqa: E402
from rlhf_core.data import Prompt, PromptGroup, ToolCall  # noqa: E402
from rlhf_core.models import ModelConfig, load_tokenizer  # noqa: E402
from rlhf_plugin_episodes.agent_config import MultiTurnConfig  # noqa: E402
from rlhf_plugin_episodes.episode import Episode  # noqa: E402
from rlhf_studies.ray_actors.late import HANGS  # noqa: E402

TIMEOUT_S = 1.0


def main() -> None:
    """The first answer, more workers, many calls; then a call that hangs."""
    workers, count = map(int, sys.argv[1:])
    registry, model = open_registry(), ModelConfig(path="pocket", chat_template="hermes")
    policy = SimpleNamespace(tokenizer=load_tokenizer(model), model=None, context=4096)
    environment = registry.config("environment", "late")
    ctx = context_of(registry, model=model, policy=policy, environment=environment)  # pyright: ignore[reportArgumentType]
    answers = MultiTurnConfig.model_validate({"workers": workers, "call_timeout_s": TIMEOUT_S}).build(ctx).answers

    def ask(*names: str, episodes: dict[str, Episode] = {}) -> float:  # noqa: B006
        for name in names:
            group = PromptGroup(Prompt(name, ({"role": "user", "content": "?"},)), (1,), 1)
            episodes.setdefault(name, Episode(group, 0, len(episodes), 100, 100))
        began = time.perf_counter()
        answers.step([(episodes[name], [ToolCall("wait", {}, "call00000")]) for name in names], 0)
        return time.perf_counter() - began

    ask("first")
    first = time.perf_counter() - BEGAN
    started = ask(*map(str, range(workers - 1)))
    calls = [ask("first") for _ in range(count)]
    print(json.dumps({"first": first, "started": started, "calls": calls}), flush=True)
    sys.stdin.readline()
    print(json.dumps({"gone": ask(HANGS) - TIMEOUT_S}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()

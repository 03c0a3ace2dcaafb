"""One model in a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rlhf_core.cli import load_sampler, open_registry
from rlhf_core.config import ConfigError
from rlhf_core.data import Message
from rlhf_core.models import Formatter
from rlhf_core.rollouts import RolloutRequest, SamplingParams, request_seed
from rlhf_plugin_chat.toolbox import lines_of
from rlhf_plugin_native.as_trained import model_as_trained

if TYPE_CHECKING:
    from rlhf_core.data import Tool
    from rlhf_core.models import Formatter, LoadedModel
    from rlhf_core.rollouts import Rollout, Turn
    from rlhf_plugin_chat.toolbox import Toolbox, ToolUser
    from rlhf_plugin_native.engine import NativeEngine

Say = Callable[[str], None]
UNFINISHED = "\ufffd"
"""What a tokenizer decodes the first bytes of a letter to."""


@dataclass(frozen=True)
class Settings:
    """How answers are drawn, and what the model is told first."""

    seed: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    system: str = ""

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens, temperature=self.temperature, top_p=self.top_p, stop=self.stop
        )


class TextStream:
    """Turns tokens into text as they come; a letter is held back until all of its bytes are there."""

    def __init__(self, tokenizer: Any, write: Say) -> None:
        self.tokenizer, self.write, self.ids, self.text = tokenizer, write, list[int](), ""

    def token(self, token: int) -> None:
        self.ids.append(token)
        text = str(self.tokenizer.decode(self.ids, skip_special_tokens=True))
        if not text.endswith(UNFINISHED):
            self.end(text)

    def end(self, text: str) -> None:
        if text.startswith(self.text) and len(text) > len(self.text):
            self.write(text[len(self.text) :])
            self.text = text


@dataclass
class ChatModel:
    name: str
    policy: LoadedModel
    engine: NativeEngine
    formatter: Formatter
    warn: Say
    turns: list[Message] = field(default_factory=list[Message])
    left_out: int = 0
    tools: tuple[Tool, ...] = ()
    tool_user: ToolUser | None = None
    """Answers with calls; None where the model has no tools."""

    @classmethod
    def load(
        cls,
        path: str,
        chat_template: str | None,
        prompt_format: str | None,
        warn: Say,
        toolbox: Toolbox | None = None,
        tool_format: str | None = None,
        **of_model: Any,
    ) -> ChatModel:
        """Load a model, as its run wrote prompts unless told otherwise; what is special about it is said."""
        config = model_as_trained(
            path,
            "rlhf chat",
            chat_template=chat_template,
            prompt_format=prompt_format,
            tool_format=tool_format,
            **of_model,
        )
        sampler = load_sampler(open_registry(), config)
        policy, engine = sampler
        formatter = Formatter(policy.tokenizer, config.prompt_format, config.tool_format)
        if not formatter.chat:
            why = (
                "prompts are plain text (raw)"
                if config.prompt_format == "raw"
                else "it has no chat template, as base models have none"
            )
            warn(
                f"{path}: {why}. It continues each message as plain text, without memory of those before; "
                "--chat-template plain gives it turns"
            )
        talker = cls(path, policy, engine, formatter, warn)
        if toolbox is not None:
            talker.tools = toolbox.tools
            formatter.encode([{"role": "user", "content": "x"}], talker.tools)  # a template that ignores them says so
            talker.tool_user = toolbox.open(sampler, config)
        return talker

    def close(self) -> None:
        if self.tool_user is not None:
            self.tool_user.close()

    def answer(
        self, message: str, settings: Settings, turn: int, write: Say, say_turn: Say = lambda text: None
    ) -> Rollout:
        """Answer a message, and remember both; ``turn`` and the seed decide the random numbers. ``write`` gets the
        answer's pieces (with tools whole turns), ``say_turn`` each call and result."""
        ids = self._encoded(message, settings)
        room = self.engine.context - len(ids)
        seed = request_seed(settings.seed, "chat", turn, 0)
        request = RolloutRequest("chat", ids, 0, seed)
        sampling = replace(settings.sampling(), max_tokens=min(settings.max_tokens, room))
        if self.tool_user is not None:
            return self._with_tools(self.tool_user, message, ids, settings, seed, sampling, write, say_turn)
        stream = TextStream(self.policy.tokenizer, write)
        self.turns += [{"role": "user", "content": message}, {"role": "assistant", "content": ""}]
        try:
            rollout = self.engine.stream(request, sampling, stream.token)
        finally:  # an answer that was interrupted is what was read of it
            self.turns[-1] = {"role": "assistant", "content": stream.text}
        stream.end(rollout.text)
        self.turns[-1] = {"role": "assistant", "content": rollout.text}
        return rollout

    def _with_tools(
        self,
        user: ToolUser,
        message: str,
        ids: tuple[int, ...],
        settings: Settings,
        seed: int,
        sampling: SamplingParams,
        write: Say,
        say_turn: Say,
    ) -> Rollout:
        """Answer with calls; what was said and read is remembered, also of an answer that was interrupted."""
        messages = [*_system(settings.system), *self.turns[self.left_out :], {"role": "user", "content": message}]
        self.turns.append({"role": "user", "content": message})

        def watch(turn: Turn) -> None:
            self.turns.append(dict(turn.message))
            if turn.role == "assistant" and turn.text:
                write(turn.text)
            for line in lines_of(turn):
                say_turn(line)

        try:
            rollout = user.answer(messages, ids, seed, sampling, watch)
        finally:
            if self.turns[-1]["role"] != "assistant":
                self.turns.append({"role": "assistant", "content": ""})
        if (ended := rollout.info.get("ended")) not in ("answer", "length", None):
            self.warn(f"{self.name}: the answer ended by {str(ended).replace('_', ' ')}")
        return rollout

    def forget(self) -> None:
        self.turns, self.left_out = [], 0

    def forget_last(self) -> None:
        """Drop the newest message and what was answered to it."""
        questions = [n for n, turn in enumerate(self.turns) if turn["role"] == "user"]
        self.turns = self.turns[: questions[-1]] if questions else []
        self.left_out = min(self.left_out, len(self.turns))

    def messages(self, system: str) -> list[Message]:
        return [*_system(system), *self.turns]

    def _encoded(self, message: str, settings: Settings) -> tuple[int, ...]:
        """The conversation with one more message; its oldest turns are left out where it is too long."""
        question: Message = {"role": "user", "content": message}
        head = _system(settings.system)
        earlier: Sequence[Message] = self.turns[self.left_out :] if self.formatter.chat else ()
        needed = min(settings.max_tokens, self.engine.context // 4)
        while len(ids := self.formatter.encode([*head, *earlier, question], self.tools)) + needed > self.engine.context:
            if not earlier:
                break
            second = next((n for n, turn in enumerate(earlier) if n and turn["role"] == "user"), len(earlier))
            earlier = earlier[second:]
        left_out = len(self.turns) - len(earlier) if self.formatter.chat else 0
        if left_out > self.left_out:
            self.warn(
                f"{self.name}: the conversation no longer fits into {self.engine.context} tokens; its first "
                f"{left_out} turns are left out (/reset begins anew)"
            )
            self.left_out = left_out
        if len(ids) >= self.engine.context:
            raise ConfigError(
                f"the message has {len(ids)} tokens, the context of {self.name} {self.engine.context}",
                fix="shorten it, or the system prompt",
            )
        return ids


def _system(text: str) -> list[Message]:
    return [{"role": "system", "content": text}] if text.strip() else []

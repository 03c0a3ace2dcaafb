"""Answers the calls of one episode, and judges its last answer."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.data import Prompt, ToolCall
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_core.rollouts import ToolError, ToolResult, TurnStatus
from rlhf_plugin_episodes.calculator import Calculator
from rlhf_plugin_episodes.lookup.config import LookupConfig
from rlhf_plugin_episodes.lookup.questions import answer_in
from rlhf_plugin_episodes.lookup.world import World, world


class Lookup:
    def __init__(self, config: LookupConfig) -> None:
        self.config = config
        self.worlds: tuple[World, ...] = (world(config.world_seed, "train"), world(config.world_seed, "heldout"))
        self.calculator = Calculator()
        self.wanted: set[tuple[str, str]] = set()

    def reset(self, prompt: Prompt, seed: int) -> None:
        self.wanted = {(str(call[0]), str(call[2])) for call in prompt.meta.get("plan", ())}

    def step(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        return [self._answer(call) for call in calls]

    def _answer(self, call: ToolCall) -> ToolResult:
        try:
            text = self._search(**call.arguments) if call.name == "search" else self.calculator.call(**call.arguments)
        except ToolError as error:
            return ToolResult(f"Error: {error}", TurnStatus.ERROR)
        result = (call.name, text)
        score = None
        if self.config.step_reward:
            score = self.config.step_reward if result in self.wanted else 0.0
        self.wanted.discard(result)
        return ToolResult(text, score=score)

    def _search(self, query: str) -> str:
        answers = [one.search(query) for one in self.worlds]
        return next((text for text in answers if text != "Nothing found."), answers[0])

    def score(self, sample: Sample) -> Score:
        answer = sample.prompt.answer
        if answer is None:
            return Score.failed(ScoreStatus.MISSING, f"prompt {sample.prompt.id} has no answer to compare with")
        stated = answer_in(sample.completion)
        right = stated is not None and float(stated) == float(answer)
        return Score(float(right), {"right": float(right), "answered": float(stated is not None)})

"""A judge on this machine: any causal language model through the native rollout engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rlhf_core.config import BuildContext
from rlhf_core.data import Message, message_text
from rlhf_core.models import Formatter, ModelError, load_policy
from rlhf_core.rewards import JudgeReply, JudgeRequest, ScoreStatus
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_judge.config import LocalConfig
from rlhf_plugin_judge.texts import clean
from rlhf_plugin_native.engine import NativeEngine


class LocalJudge:
    """Answers all requests of a call together, each independent; without a strategy it takes an accelerator."""

    def __init__(self, config: LocalConfig, ctx: BuildContext) -> None:
        loaded = load_policy(config.model)
        loaded.run_on(ctx.device)
        self.formatter, self.context = Formatter(loaded.tokenizer, config.model.prompt_format), loaded.context
        self.engine = NativeEngine(
            loaded.model, loaded.tokenizer, loaded.context, config.max_concurrent, config.max_batch_tokens
        )

    def ask(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        """One reply per request, in order; one that does not fit the context has a status."""
        replies: dict[int, JudgeReply] = {}
        waiting: dict[float, list[tuple[int, RolloutRequest]]] = defaultdict(list)
        for at, request in enumerate(requests):
            try:
                ids = self.encode(request)
            except ModelError as error:
                replies[at] = JudgeReply.failed(ScoreStatus.ERROR, str(error))
                continue
            if not ids or len(ids) + request.max_tokens > self.context:
                replies[at] = JudgeReply.failed(ScoreStatus.ERROR, misfit(len(ids), request.max_tokens, self.context))
                continue
            waiting[request.temperature].append(
                (at, RolloutRequest(request.id, ids, 0, request.seed, request.max_tokens))
            )
        for temperature, rows in waiting.items():
            longest = max(r.max_tokens or 0 for _, r in rows)
            sampling = SamplingParams(max_tokens=longest, temperature=temperature)
            for (at, _), rollout in zip(rows, self.engine.generate([r for _, r in rows], sampling, 0)):
                status, why = (ScoreStatus.OK, "") if rollout.text else (ScoreStatus.MISSING, "an answer without text")
                replies[at] = JudgeReply(
                    rollout.text or None, status, why, len(rollout.prompt_ids), len(rollout.completion_ids)
                )
        return [replies[at] for at in range(len(requests))]

    def encode(self, request: JudgeRequest) -> tuple[int, ...]:
        """Token ids of a request; a chat template without a system turn gets the system text before the question."""
        turns: tuple[Message, ...] = tuple(
            {"role": m["role"], "content": clean(message_text(m))} for m in request.messages
        )
        if not request.system:
            return self.formatter.encode(turns)
        system = clean(request.system)
        try:
            return self.formatter.encode(({"role": "system", "content": system}, *turns))
        except ModelError:
            first = {**turns[0], "content": f"{system}\n\n{turns[0]['content']}"}
            return self.formatter.encode((first, *turns[1:]))


def misfit(question: int, answer: int, context: int) -> str:
    """Why a question of so many tokens and its answer do not fit a context."""
    if question >= context:
        return f"the question alone has {question} tokens, and the model's context has {context}"
    sizes = f"the question has {question} tokens; with {answer} for the answer"
    return f"{sizes} that is outside the model's context of {context}"

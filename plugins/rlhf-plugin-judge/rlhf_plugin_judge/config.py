"""The judges' settings; importing this imports neither a client library nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.models import ModelConfig
from rlhf_core.rewards import JudgeRequest
from rlhf_plugin_judge.paid_config import PaidConfig
from rlhf_plugin_judge.prices import PRICES, TAKE_TEMPERATURE, Price, is_version

if TYPE_CHECKING:
    from rlhf_plugin_judge.question import Question
    from rlhf_plugin_judge.service import AnthropicJudge


class AnthropicConfig(PaidConfig):
    """A model behind the Anthropic API. The key comes from the environment variable ``ANTHROPIC_API_KEY`` only."""

    package: ClassVar[str] = "anthropic"
    address_from: ClassVar[str] = "ANTHROPIC_BASE_URL"
    list_prices: ClassVar[Mapping[str, Price]] = PRICES

    name: str = "anthropic"
    model: str = "claude-haiku-4-5"
    prompt_caching: bool = True
    """Mark the system text, which many questions share, for the service's prompt cache."""
    send_temperature: bool | None = None
    """Newer models refuse a temperature; None sends it to those known to take one."""
    batches: bool = False
    """Send all questions of a call as message batches: cheaper, and slow (up to a day)."""
    batch_size: int = Field(default=10_000, ge=1, le=100_000)
    batch_price: float = Field(default=0.5, gt=0, le=1)
    """What a batch costs of the ordinary price."""
    batch_poll_s: float = Field(default=30.0, gt=0)
    batch_deadline_s: float = Field(default=90_000.0, gt=0)
    """Seconds to wait for a batch; what comes later is fetched by the next call that asks the same."""

    @property
    def key_variable(self) -> str:
        return "ANTHROPIC_API_KEY"

    @property
    def seconds(self) -> float:
        """The longest that one answer takes."""
        return self.batch_deadline_s if self.batches else self.deadline_s

    @property
    def takes_temperature(self) -> bool:
        if self.send_temperature is not None:
            return self.send_temperature
        return any(is_version(self.model, name) for name in TAKE_TEMPERATURE)

    @property
    def looks_back(self) -> bool:
        """Batches that are sent before midnight end after."""
        return self.batches or super().looks_back

    def question_of(self, request: JudgeRequest) -> Question:
        from rlhf_plugin_judge.question import question_of

        return question_of(request, self)

    def service(self, ctx: BuildContext) -> AnthropicJudge:
        from rlhf_plugin_judge.service import AnthropicJudge

        return AnthropicJudge(self, self.key(), ctx)


class LocalConfig(ComponentConfig):
    """Any causal language model, sampled by the native rollout engine, all questions of a call together."""

    name: str = "local"
    component: ClassVar[str] = "rlhf_plugin_judge.local:LocalJudge"
    model: ModelConfig = ModelConfig()
    max_concurrent: int = Field(default=64, ge=1)
    """Answers decoded together."""
    max_batch_tokens: int | None = Field(default=None, ge=1)
    """Most cached positions at once; None sets no limit."""
    seconds: float = Field(default=300.0, gt=0)
    """What a verifier's worker, which asks one question at a time on one core, is given for an answer."""

"""The judges' settings; importing this imports neither a client library nor torch."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, SecretStr

from rlhf_core.api import BuildContext, ComponentConfig, ConfigError, JudgeRequest, ModelConfig, PluginError
from rlhf_core.sdk import cache_folder
from rlhf_plugin_judge.prices import NANO, PRICES, TAKE_TEMPERATURE, Price, is_version, price_of

if TYPE_CHECKING:
    from rlhf_plugin_judge.service import AnthropicJudge

KEY = "ANTHROPIC_API_KEY"


class AnthropicConfig(ComponentConfig):
    """A model behind the Anthropic API. The key comes from the environment variable ``ANTHROPIC_API_KEY`` only."""

    name: str = "anthropic"
    model: str = "claude-haiku-4-5"
    base_url: str | None = None
    """Another address that speaks the Messages API; None is the service's own."""
    max_cost_usd: float = Field(default=5.0, gt=0)
    """Nothing is sent that could bring what the ledger holds above this, requests in flight at their worst included."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Model -> USD per million tokens; added to the list prices known here, which may have changed."""
    ledger: str | None = None
    """Where tokens and money are written down; all that share the file share the cap. None is ``judge_ledger.jsonl`` in
    the run's folder, and outside a run one file a day in the cache."""
    cache: bool = True
    """Keep answers in ``$RLHF_CACHE/judges``: the same question to the same model is not asked again."""
    concurrency: int = Field(default=16, ge=1)
    """Requests in flight at once."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds for one attempt."""
    deadline_s: float = Field(default=300.0, gt=0)
    """Seconds for one question, attempts and waits included; then its status is ``timeout``."""
    max_attempts: int = Field(default=8, ge=1)
    """Attempts at one question on 408, 409, 429, 5xx (529 included), broken connections and timeouts."""
    backoff_s: float = Field(default=0.5, ge=0)
    """First wait; it doubles with each attempt, up to ``max_backoff_s``, and half of it is drawn at random. A
    ``retry-after`` of the service is kept to."""
    max_backoff_s: float = Field(default=30.0, ge=0)
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
    def secrets(self) -> tuple[str, ...]:
        """Environment variables that a process with this judge must inherit."""
        return (KEY,)

    @property
    def seconds(self) -> float:
        """The longest that one answer takes."""
        return self.batch_deadline_s if self.batches else self.deadline_s

    @property
    def price(self) -> Price:
        """What this model's tokens cost.

        Raises:
            ConfigError: its price is not known.
        """
        prices: Mapping[str, Price] = {**PRICES, **self.prices}
        if (price := price_of(self.model, prices)) is None:
            raise ConfigError(
                f"judge 'anthropic': what '{self.model}' costs is not known, so no cap can hold",
                why=f"known: {', '.join(sorted(prices))}",
                fix=f"--set 'judge.prices={{{self.model}: {{input: 1.0, output: 5.0}}}}' with its prices "
                "in USD per million tokens",
            )
        return price

    @property
    def takes_temperature(self) -> bool:
        """Whether the temperature is sent."""
        if self.send_temperature is not None:
            return self.send_temperature
        return any(is_version(self.model, name) for name in TAKE_TEMPERATURE)

    @property
    def address(self) -> str | None:
        """Where questions go; None is the service's own address. Another service's answers are kept apart."""
        return self.base_url or os.environ.get("ANTHROPIC_BASE_URL") or None

    def key(self) -> SecretStr:
        """The key, in a wrapper that prints as stars.

        Raises:
            ConfigError: the variable is not set.
        """
        if not (value := os.environ.get(KEY, "").strip()):
            raise ConfigError(
                "judge 'anthropic' has no key",
                why=f"the environment variable {KEY} is not set",
                fix=f"export {KEY}=..., or use a model of your own: judge 'local'",
            )
        return SecretStr(value)

    def most_usd(self, requests: Sequence[JudgeRequest]) -> float:
        """What some questions can cost at most, each answered at the first attempt."""
        from rlhf_plugin_judge.question import question_of

        return sum({q.digest: q.most for q in (question_of(r, self) for r in requests)}.values()) / NANO

    def ledger_file(self, run_dir: Path | None) -> Path:
        """Where this judge's spending is written down."""
        if self.ledger is not None:
            return Path(self.ledger).expanduser()
        if run_dir is not None:
            return run_dir / "judge_ledger.jsonl"
        return cache_folder() / "judges" / f"ledger-{time.strftime('%Y-%m-%d', time.gmtime())}.jsonl"

    def earlier_ledgers(self, run_dir: Path | None) -> list[Path]:
        """Ledgers of the last days whose batches may still be fetched: one that is sent before midnight ends after."""
        if not self.batches or self.ledger is not None or run_dir is not None:
            return []
        today, since = self.ledger_file(None), time.time() - 7 * 86400
        return [p for p in sorted(today.parent.glob("ledger-*.jsonl")) if p != today and p.stat().st_mtime > since]

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse what could only fail once something is asked.

        Raises:
            PluginError: the anthropic package is missing.
            ConfigError: no key, or no price.
        """
        if importlib.util.find_spec("anthropic") is None:
            raise PluginError(
                "judge 'anthropic' cannot be used: the package anthropic is not installed",
                where="rlhf-plugin-judge",
                fix="pip install 'rlhf-plugin-judge[anthropic]'",
            )
        _ = self.key(), self.price

    def build(self, ctx: BuildContext) -> AnthropicJudge:
        """Return the judge, once the key and the price are known to be there.

        Nothing is sent, and no thread started, before the first question.

        Raises:
            PluginError, ConfigError: see :meth:`preflight`; or the ledger is damaged.
        """
        self.preflight(ctx)
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

"""What all services that take money have as settings; importing this imports neither a client library nor torch."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError, PluginError
from rlhf_core.data import cache_folder
from rlhf_core.rewards import JudgeRequest
from rlhf_plugin_judge.prices import NANO, Price, price_of

if TYPE_CHECKING:
    from rlhf_plugin_judge.question import Question


class PaidConfig(ComponentConfig):
    """A model behind a service that is paid by the token."""

    not_inputs: ClassVar[Set[str]] = frozenset({"ledger", "model"})

    package: ClassVar[str] = ""
    """The client library, and the extra that installs it."""
    address_from: ClassVar[str] = ""
    """The environment variable with an address."""
    what: ClassVar[str] = "judge"
    instead: ClassVar[str] = "judge 'local'"
    list_prices: ClassVar[Mapping[str, Price]] = {}

    model: str = ""
    """As the service calls it."""
    base_url: str | None = None
    """Another address that speaks the same protocol; None is the service's own."""
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
    repeat_after_timeout: bool = True
    """Ask again after an attempt that ended without an answer (a timeout, a broken connection, one that cannot be
    read), although it may have been billed. False: status ``missing``, so that nothing is ever paid twice."""
    repeat_after_kill: bool = True
    """Ask again what a killed process had in flight, although it may have been billed. False: status ``missing``."""

    @property
    def key_variable(self) -> str:
        raise NotImplementedError

    @property
    def address(self) -> str | None:
        """Where questions go; None is the service's own address. Another service's answers are kept apart."""
        return self.base_url or os.environ.get(self.address_from) or None

    def question_of(self, request: JudgeRequest) -> Question:
        raise NotImplementedError

    def service(self, ctx: BuildContext) -> Any:
        raise NotImplementedError

    @property
    def secrets(self) -> tuple[str, ...]:
        """Environment variables that a process with this judge must inherit."""
        return (self.key_variable,)

    @property
    def seconds(self) -> float:
        """The longest that one answer takes."""
        return self.deadline_s

    @property
    def price(self) -> Price:
        prices: Mapping[str, Price] = {**self.list_prices, **self.prices}
        if (price := price_of(self.model, prices)) is None:
            raise ConfigError(
                f"{self.what} '{self.name}': what '{self.model}' costs is not known, so no cap can hold",
                why=f"known: {', '.join(sorted(prices)) or 'none'}",
                fix=f"--set '{self.what}.prices={{{self.model}: {{input: 1.0, output: 5.0}}}}' with its prices "
                "in USD per million tokens",
            )
        return price

    @property
    def known_key(self) -> str:
        return os.environ.get(self.key_variable, "").strip()

    def key(self) -> SecretStr:
        """The key, in a wrapper that prints as stars."""
        if not self.known_key:
            raise ConfigError(
                f"{self.what} '{self.name}' has no key",
                why=f"the environment variable {self.key_variable} is not set",
                fix=f"export {self.key_variable}=..., or use a model of your own: {self.instead}",
            )
        return SecretStr(self.known_key)

    def most_usd(self, requests: Sequence[JudgeRequest]) -> float:
        """What some questions can cost at most, each answered at the first attempt."""
        return sum({q.digest: q.most for q in map(self.question_of, requests)}.values()) / NANO

    def ledger_file(self, run_dir: Path | None) -> Path:
        if self.ledger is not None:
            return Path(self.ledger).expanduser()
        if run_dir is not None:
            return run_dir / "judge_ledger.jsonl"
        return cache_folder() / "judges" / f"ledger-{time.strftime('%Y-%m-%d', time.gmtime())}.jsonl"

    @property
    def looks_back(self) -> bool:
        """Whether ledgers of other days say something about today's questions."""
        return not self.repeat_after_kill or not self.repeat_after_timeout

    def earlier_ledgers(self, run_dir: Path | None) -> list[Path]:
        """Ledgers of the last seven days, which hold what was sent before midnight and not answered."""
        if not self.looks_back or self.ledger is not None or run_dir is not None:
            return []
        today, since = self.ledger_file(None), time.time() - 7 * 86400
        return [p for p in sorted(today.parent.glob("ledger-*.jsonl")) if p != today and p.stat().st_mtime > since]

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse what could only fail once something is asked."""
        if "@" in urlsplit(self.address or "").netloc:
            raise ConfigError(
                f"{self.what} '{self.name}': the address of the service holds a user or a password",
                why="addresses are written into the folders of runs and evaluations",
                fix=f"leave them out, and export {self.key_variable}=...",
            )
        if importlib.util.find_spec(self.package) is None:
            raise PluginError(
                f"{self.what} '{self.name}' cannot be used: the package {self.package} is not installed",
                where="rlhf-plugin-judge",
                fix=f"pip install 'rlhf-plugin-judge[{self.package}]'",
            )
        _ = self.key(), self.price

    def build(self, ctx: BuildContext) -> Any:
        """Return the judge once key and price are there; nothing is sent before the first question."""
        self.preflight(ctx)
        return self.service(ctx)

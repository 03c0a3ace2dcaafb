"""Settings of the correction for tokens that the policy in training has not sampled itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf_core.plugins.component import Config
from rlhf_core.types.errors import ConfigError


class ImportanceSettings(Config):
    """Correction for tokens that another policy, or another engine's arithmetic, has sampled: the policy's loss is
    multiplied by ``exp(old - behaviour)``, which carries no gradient. KL, entropy and value terms are not."""

    mode: Literal["off", "truncate", "mask"] | None = None
    """``truncate``: weights above ``cap`` become ``cap`` (TIS: Yao et al. 2025). ``mask``: they become 0 (MIS). None
    truncates where ``rollouts.max_staleness`` or ``max_reads`` lets rollouts be stale, and is off elsewhere."""
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or one per completion: the product over its tokens."""
    cap: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """Upper bound of the weights."""
    low: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Lower bound: smaller weights are raised to it (``truncate``) or become 0 (``mask``)."""
    old_policy: Literal["start_of_step", "behaviour"] = "start_of_step"
    """What the loss's own ratio and clip are relative to. ``start_of_step``: the policy with which the step begins
    (decoupled PPO: Hilton et al. 2022; AReaL: Fu et al. 2025), so that clipping bounds this step and the weights
    correct for what was before. ``behaviour``: the policy that sampled, as in plain PPO; no weights then."""

    @model_validator(mode="after")
    def _bounds(self) -> ImportanceSettings:
        if self.low is not None and self.low > self.cap:
            raise ConfigError(
                f"importance.low {self.low:g} is more than importance.cap {self.cap:g}", fix="lower low or raise cap"
            )
        if self.old_policy == "behaviour" and self.mode in ("truncate", "mask"):
            raise ConfigError(
                f"importance.mode {self.mode} cannot be combined with importance.old_policy=behaviour",
                why="the loss's own ratio is then relative to the policy that sampled: it would be corrected twice",
                fix="leave one of them out",
            )
        return self

    def correction(self, stale: bool) -> Literal["off", "truncate", "mask"]:
        """The mode, where None is resolved by whether rollouts may be stale."""
        if self.mode is not None:
            return self.mode
        return "truncate" if stale and self.old_policy == "start_of_step" else "off"

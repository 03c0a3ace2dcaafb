"""How long the stages of a run may take."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlhf_core.plugins.component import Config

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
HOUR, DAY = 3600.0, 86400.0


class DeadlineSettings(Config):
    """Longest time for each stage, in seconds. What takes longer is taken to hang: the run ends with exit code 1 and
    says which component it was, in which step, and at which line; the last complete checkpoint stays.
    """

    build_s: Seconds = DAY
    """Loading models and data, building components (training an ensemble of reward models included)."""
    rollout_s: Seconds = 4 * HOUR
    """One call of the agent or the rollout engine."""
    reward_s: Seconds = HOUR
    """One call of a reward, of a batch's completions or of one rank's share."""
    update_s: Seconds = DAY
    """One whole step."""
    evaluation_s: Seconds = DAY
    """One evaluation, benchmarks included."""
    checkpoint_s: Seconds = HOUR
    """Writing a checkpoint or the final model."""
    listener_s: Seconds = HOUR
    """One call of a hook, a monitor or a tracker."""
    close_s: Seconds = 600.0
    """Closing one component at the end of the run (a tracker may have to send what it holds)."""

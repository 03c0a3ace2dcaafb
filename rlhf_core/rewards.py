"""Rewards, verifiers and judges: samples in, scores out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.plugins.component import VerifierConfig as VerifierConfig
    from rlhf_core.plugins.contracts import score_samples as score_samples
    from rlhf_core.plugins.protocols import Judge as Judge
    from rlhf_core.types.rollouts import JudgeReply as JudgeReply
    from rlhf_core.types.rollouts import JudgeRequest as JudgeRequest
    from rlhf_core.types.rollouts import Sample as Sample
    from rlhf_core.types.rollouts import Score as Score
    from rlhf_core.types.rollouts import ScoreStatus as ScoreStatus

__getattr__, __dir__ = surface(__name__)

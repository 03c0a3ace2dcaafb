"""Conformance of losses."""

from __future__ import annotations

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_testing.config import built, check_config
from rlhf_testing.report import require
from rlhf_testing.samples import make_context

KINDS_OF_LOSS = ("token_advantages", "labels", "pairs", "unpaired", "teacher")


def check_loss(config: ComponentConfig, ctx: BuildContext | None = None, *, clips: bool | None = None) -> None:
    """Check a loss.

    Token losses: an unreduced, finite ``loss_BT``; the gradient raises the logprob of labels and of tokens with a
    positive advantage, and lowers those with a negative one; masked places and padding change nothing; micro-batches
    add up to the whole batch's gradient under every reduction; no gradient past the clip; nothing is modified, in any
    call, and the same batch gives the same loss.

    Unpaired losses (single responses, each desirable or not): the gradient raises desirable responses and lowers the
    others; micro-batches add up.

    Pair losses: ``loss_B`` falls as the margin grows from below zero; micro-batches add up; the pairs' weights are left
    to the core.

    Losses of a teacher (distillation): ``divergence`` of two tensors of log-probabilities is finite, 0 where they are
    equal and falls as the student comes nearer; ids that cannot be (``-inf``) change nothing.

    Args:
        clips: whether the gradient must vanish past ``clip_range``; None means: if the Config has that field.
    """
    check_config(config, "loss")
    rule, seen = f"`consumes` is one of {', '.join(KINDS_OF_LOSS)}", repr(config.consumes)
    require(config.consumes in KINDS_OF_LOSS, config, rule, seen, 'consumes: ClassVar[str | None] = "token_advantages"')
    from rlhf_testing.report import left_alone

    loss = left_alone(config, built(config, "loss", ctx or make_context()), "a loss", "batch")
    if config.consumes == "pairs":
        from rlhf_testing.pair_loss import check_pair_loss

        check_pair_loss(config, loss)
        return
    if config.consumes == "unpaired":
        from rlhf_testing.pair_loss import check_unpaired_loss

        check_unpaired_loss(config, loss)
        return
    if config.consumes == "teacher":
        from rlhf_testing.teacher_loss import check_teacher_loss

        check_teacher_loss(config, built(config, "loss", ctx or make_context()))
        return
    from rlhf_testing.token_loss import check_past_clip, check_token_loss

    check_token_loss(config, loss)
    if hasattr(config, "clip_range") if clips is None else clips:
        check_past_clip(config, loss)

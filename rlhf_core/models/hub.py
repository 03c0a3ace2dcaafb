"""Whether the Hugging Face hub answers, asked once."""

from __future__ import annotations

from functools import cache

WAIT_S = 5.0


def hub_reachable() -> bool:
    """False where nothing answers, not even with an error, or ``HF_HUB_OFFLINE`` is set.

    Without a network, libraries ask the hub six times for each of a model's files, 23 seconds a file, before they
    take the local copy or find that there is none.
    """
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and _answers(constants.ENDPOINT)


@cache
def _answers(address: str) -> bool:
    from huggingface_hub.utils import get_session

    try:
        get_session().head(address, timeout=WAIT_S)
    except Exception:  # of whichever HTTP library is below; whatever it is, nobody answered
        return False
    return True

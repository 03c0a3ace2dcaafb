"""What the tests of the agents share."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.sdk import context_of, open_registry


@pytest.fixture(scope="session")
def ctx() -> Any:
    return context_of(open_registry())

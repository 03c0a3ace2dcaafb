"""The tiny models of the core's engine tests."""

from __future__ import annotations

from tests.engine.conftest import model, new_model, tokenizer

__all__ = ["model", "new_model", "tokenizer"]

"""Tiny mixtures of experts."""

from tests.families.conftest import saved as saved
from tests.families.conftest import tokenizer as tokenizer

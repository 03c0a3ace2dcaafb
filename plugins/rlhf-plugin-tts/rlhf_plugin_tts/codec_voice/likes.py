"""Tokens and prompts of known families."""

from __future__ import annotations

from typing import Any

LIKE: dict[str, dict[str, Any]] = {
    "llasa": {
        "token": "<|s_{}|>",
        "end": "<|SPEECH_GENERATION_END|>",
        "prompt": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nConvert the text to speech:"
        "<|TEXT_UNDERSTANDING_START|>{text}<|TEXT_UNDERSTANDING_END|><|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n<|SPEECH_GENERATION_START|>",
    },
    "neutts": {
        "token": "<|speech_{}|>",
        "end": "<|SPEECH_GENERATION_END|>",
        "prompt": "user: Convert the text to speech:<|TEXT_PROMPT_START|>{text}<|TEXT_PROMPT_END|>\n"
        "assistant:<|SPEECH_GENERATION_START|>",
    },
}
"""Settings of known families; ``rlhf tts voice --like``."""

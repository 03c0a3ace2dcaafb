"""`rlhf tts`. Nothing heavy is imported before a command is called."""

from __future__ import annotations

import click

from rlhf_core.cli import OpenGroup


@click.group(
    cls=OpenGroup,
    path="tts",
    lazy={
        "validate": ("rlhf_plugin_tts.validate_cli:validate", "Compare features and rewards with listeners' ratings."),
        "train": (
            "rlhf_plugin_tts.speech_training.command:train",
            "Train a speech policy, and measure what it gained.",
        ),
        "compare": ("rlhf_plugin_tts.speech_data.compare:compare", "Measure a speech policy, beside an earlier one."),
        "listen": (
            "rlhf_plugin_tts.listening.command:listen",
            "Compare sounds blind; answers become preference pairs.",
        ),
        "pairs": ("rlhf_plugin_tts.speech_data.command:pairs", "Make preference pairs of a speech policy's clips."),
        "voice": ("rlhf_plugin_tts.codec_voice.command:voice", "Make a speech policy of a model with codec ids."),
        "train-reward": ("rlhf_plugin_tts.train_cli:train_reward", "Train a reward model on pairs of clips."),
    },
)
def tts() -> None:
    """Speech: rewards for audio, and what they are worth."""

"""Parler-TTS as a policy: its delay pattern as one stream of tokens."""

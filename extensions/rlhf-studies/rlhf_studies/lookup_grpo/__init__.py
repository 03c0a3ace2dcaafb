"""Multi-turn GRPO on `lookup`, with controls."""

"""Decides which prompts are sampled, how many completions of each, and how far ahead of learning."""

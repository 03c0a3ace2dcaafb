"""Evaluation: suites of prompts with verifiers, and what can be said of a model's completions of them."""

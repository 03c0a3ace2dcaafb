"""Evaluation: suites of prompts with verifiers, and figures of a model's completions of them."""

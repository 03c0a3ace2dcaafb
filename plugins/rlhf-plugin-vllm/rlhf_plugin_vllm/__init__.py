"""Rollouts from vLLM servers. Nothing is imported here: vLLM's own environment imports :mod:`.worker` alone."""

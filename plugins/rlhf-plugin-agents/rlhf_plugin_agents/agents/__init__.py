"""Agents: what they ask a model, which tools they call, when they stop."""

"""Prompts for speech, and preference pairs of what a speech policy says to them."""

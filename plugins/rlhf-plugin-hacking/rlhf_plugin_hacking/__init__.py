"""Reward-hacking monitor; see the README."""

"""Rewards by rule and weighted sums of rewards; see README.md."""

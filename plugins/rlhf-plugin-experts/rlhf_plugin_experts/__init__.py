"""Mixtures of experts: what a run learns of their routers, measures of them, and replays of the sampler's choices."""

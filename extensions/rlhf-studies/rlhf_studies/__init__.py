"""Studies of post-training methods: one folder each, with its question, code, verdict and recorded result."""

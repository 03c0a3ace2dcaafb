"""Memory plan, device check and data check: what to look at before training."""

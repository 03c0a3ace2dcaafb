"""Components: kinds, contracts, entry points, registry, hooks."""

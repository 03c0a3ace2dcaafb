"""One reward model against an ensemble."""

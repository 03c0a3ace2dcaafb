"""Solutions with labelled steps."""

"""What a run holds in memory, planned without weights and measured as live tensor bytes."""

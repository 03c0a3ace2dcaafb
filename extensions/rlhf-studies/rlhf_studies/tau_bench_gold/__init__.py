"""tau-bench's gold actions, and changed ones, judged."""

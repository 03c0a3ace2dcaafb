"""lm-evaluation-harness (extra ``lm-eval``): its tasks on our engine, and its filters on our rows."""

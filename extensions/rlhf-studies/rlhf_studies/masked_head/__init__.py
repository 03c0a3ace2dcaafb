"""The head on the policy's tokens alone, beside the head on every token."""

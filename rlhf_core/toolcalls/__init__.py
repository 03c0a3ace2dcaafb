"""What a policy wrote -> tool calls, each read or with an error that the policy is shown (ADR 0014)."""

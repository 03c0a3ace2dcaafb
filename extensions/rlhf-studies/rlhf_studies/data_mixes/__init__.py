"""Six mixes of conversational, synthetic and agentic data."""

"""Our verdicts on function calls beside the leaderboard's own checker."""

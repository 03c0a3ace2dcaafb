"""The quickstart's win rate over several seeds."""

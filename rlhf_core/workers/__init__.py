"""The one host of killable processes."""

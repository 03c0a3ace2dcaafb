"""An ensemble's uncertainty penalty."""

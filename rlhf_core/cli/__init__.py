"""The `rlhf` command. Each command's module is imported when it is called."""

"""What a run would do, found out without training: `rlhf train --dry-run`."""

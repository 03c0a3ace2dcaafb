"""The offline loop: demonstrations or pairs, update."""

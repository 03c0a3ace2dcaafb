"""What the online and offline loops share."""

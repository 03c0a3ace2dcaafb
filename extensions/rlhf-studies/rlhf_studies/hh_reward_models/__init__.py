"""Reward models of a real model on human pairs."""

"""Runs with real models and real data, and their recorded results."""

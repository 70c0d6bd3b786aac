"""Runs on a Temporal cluster. Imported only when one is configured (extra `temporal`)."""

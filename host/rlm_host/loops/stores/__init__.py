"""Leased event stores for runs."""

"""Kernel processes: life cycle, environments, snapshots."""

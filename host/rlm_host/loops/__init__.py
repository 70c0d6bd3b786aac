"""Durable loops: a controller table, a kernel that keeps its order, and the stores below it."""

"""Everything between the host and a kernel process: recipe, environment, life, cells, snapshots."""

"""The JSON-RPC face: one ordered, bounded queue per attachment; one row per method."""

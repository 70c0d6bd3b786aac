"""A file a noun: decode, call, encode."""

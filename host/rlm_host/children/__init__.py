"""The spawn boundary and the registry of recursive children."""

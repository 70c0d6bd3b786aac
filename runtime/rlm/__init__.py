"""What a kernel's cells see of their host."""

"""The durable loop kernel."""

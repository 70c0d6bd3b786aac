"""The only place that starts processes, and the only one that ends and reaps them."""

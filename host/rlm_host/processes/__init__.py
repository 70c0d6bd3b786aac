"""The only place that starts processes, and that ends them."""

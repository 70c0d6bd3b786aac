"""Models: the provider seam, the catalog, credentials, and the scripted provider without a key."""

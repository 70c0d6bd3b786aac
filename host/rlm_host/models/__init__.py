"""Providers behind one seam, catalog, credentials, and the model that needs no key."""

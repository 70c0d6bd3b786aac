"""The conformance kit: holds any host or runtime command against the promises of its protocol."""

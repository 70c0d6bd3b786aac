"""The host: owns sessions, children and loops."""

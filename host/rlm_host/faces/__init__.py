"""Other ways in: terminal, demo, ACP, MCP. Thin adapters without logic of their own."""

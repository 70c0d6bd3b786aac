"""
The conformance kit: does a runtime keep the promises of the protocol? Needs msgspec alone.

    python -m rlm_protocol.conformance runtime -- COMMAND...

Vectors (`vectors/*.jsonl`) hold promises as steps; they contain no code of any language: cells are
named snippets, looked up in `languages/LANGUAGE.toml`.
"""

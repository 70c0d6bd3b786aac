"""
The conformance kit: `python -m rlm_protocol.conformance runtime|host -- COMMAND...`.

It starts the command as a user would, talks to it over its pipes alone, and says for every promise
of the protocol whether it is kept. Imports the standard library and msgspec only. Hosts and kernels
never import it.
"""

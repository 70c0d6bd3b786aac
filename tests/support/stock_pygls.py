"""A host as one would write it on stock pygls: what the conformance kit is there to find."""

from lsprotocol import types
from pygls.lsp.server import LanguageServer

server = LanguageServer("stock", "1")


@server.feature("host/status")
def status(ls: LanguageServer, params: object) -> dict[str, object]:
    return {"version": "1", "uptimeMs": float("nan")}


@server.feature("host/schema")
def schema(ls: LanguageServer, params: object) -> dict[str, object]:
    print("somebody asks for the schema", flush=True)
    return {"openrpc": {"methods": []}}


@server.feature("session/read")
def read(ls: LanguageServer, params: object) -> None:
    raise ValueError("a bug")


@server.feature(types.TEXT_DOCUMENT_HOVER)
def hover(ls: LanguageServer, params: types.HoverParams) -> None:
    return None


if __name__ == "__main__":
    server.start_io()

"""The peer: stock pygls that gives back what it is asked."""

from pygls.lsp.server import LanguageServer

server = LanguageServer("stock", "1")


@server.feature("repl/execute")
def execute(params):
    return params


@server.feature("agent/spawn")
def spawn(params):
    return params


@server.feature("turn/start")
def start(params):
    count, size = map(int, params.input[0].text.split())
    for n in range(count):
        delta = {"itemId": "i", "channel": "text", "offset": n * size, "text": "x" * size}
        server.protocol.notify("item/delta", {"sessionId": "s", "gen": 1, "seq": 2, **delta})
    server.protocol.notify("turn/completed", {})


if __name__ == "__main__":
    server.start_io()

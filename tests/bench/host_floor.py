"""The least that a process behind Content-Length headers must do: read, decode, encode, write."""

import sys

import msgspec

decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


def send(message: object) -> None:
    body = encode(message)
    sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    sys.stdout.buffer.flush()


def notify(count: int, size: int) -> None:
    for n in range(count):
        delta = {"itemId": "i", "channel": "text", "offset": n * size, "text": "x" * size}
        params = {"sessionId": "s", "gen": 1, "seq": 2, **delta}
        send({"jsonrpc": "2.0", "method": "item/delta", "params": params})
    send({"jsonrpc": "2.0", "method": "turn/completed", "params": {}})


def serve() -> None:
    stdin = sys.stdin.buffer
    while header := stdin.readline():
        stdin.readline()
        request = decode(stdin.read(int(header[15:])))
        if "id" not in request:
            continue
        send({"jsonrpc": "2.0", "id": request["id"], "result": request["params"]})
        if request["method"] == "turn/start":
            notify(*map(int, request["params"]["input"][0]["text"].split()))


if __name__ == "__main__":
    serve()

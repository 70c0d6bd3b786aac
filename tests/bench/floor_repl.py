"""
The floors: the least that any process speaking lines of JSON must do. One mode per argument.

exec: read a line, decode, exec, encode, write · ping: read, decode, encode, write ·
output N: N bytes as events of 64 KiB
"""

import os
import sys

import msgspec

decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


def serve_exec() -> None:
    namespace: dict[str, object] = {}
    write = sys.stdout.buffer.write
    flush = sys.stdout.buffer.flush
    write(encode({"event": "ready", "pid": os.getpid()}) + b"\n")
    flush()
    for line in sys.stdin.buffer:
        request = decode(line)
        code = request["code"]
        try:
            value = eval(compile(code, "<c>", "eval"), namespace)
        except SyntaxError:
            value = exec(compile(code, "<c>", "exec"), namespace)
        if value is not None:
            write(encode({"event": "result", "id": request["id"], "text": repr(value)}) + b"\n")
        write(encode({"event": "done", "id": request["id"], "status": "ok"}) + b"\n")
        flush()


def serve_ping() -> None:
    sys.stdout.buffer.write(encode({"event": "ready", "pid": os.getpid()}) + b"\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        request = decode(line)
        sys.stdout.buffer.write(
            encode({"event": "done", "id": request["id"], "data": request}) + b"\n"
        )
        sys.stdout.buffer.flush()


def write_output(size: int) -> None:
    text = "x" * 65536
    for _ in range(size // len(text)):
        frame = memoryview(encode({"event": "stdout", "id": "c1", "text": text}) + b"\n")
        while frame:
            frame = frame[os.write(1, frame) :]
    os.write(1, encode({"event": "done", "id": "c1", "status": "ok"}) + b"\n")
    sys.stdin.read()  # until the measurer is done


if __name__ == "__main__":
    match sys.argv[1:] or ["exec"]:
        case ["exec"]:
            serve_exec()
        case ["ping"]:
            serve_ping()
        case ["output", size]:
            write_output(int(size))

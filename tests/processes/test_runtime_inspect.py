"""Completion and inspection over the wire, beside running cells."""

from support.runtime_driver import Runtime


def ask(runtime: Runtime, type_: str, code: str) -> dict[str, object]:
    return runtime.ask(type_, code=code, cursor=len(code)).done


def test_they_are_answered_while_a_cell_awaits() -> None:
    with Runtime() as runtime:
        id_ = runtime.started("print('go')\nvalue = [1]\nimport asyncio; await asyncio.sleep(60)")
        assert ask(runtime, "complete", "val")["matches"] == ["value"]
        assert ask(runtime, "inspect", "value")["text"] == "value: list = [1]"
        assert ask(runtime, "inspect", "nothing")["found"] is False
        runtime.interrupt(id_)
        runtime.until_done(id_)


def test_a_busy_cell_makes_them_busy_within_bounds() -> None:
    with Runtime() as runtime:
        id_ = runtime.started("print('go')\nimport time; time.sleep(60)")
        done = ask(runtime, "complete", "x")
        assert (done["status"], done["reason"]) == ("error", "kernelBusy")
        runtime.interrupt(id_)
        runtime.until_done(id_)
        assert ask(runtime, "complete", "prin")["matches"] == ["print"]

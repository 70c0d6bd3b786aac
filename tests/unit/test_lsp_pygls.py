"""What we rely on in pygls beyond its documentation, and that our table says what it would say."""

import inspect

import pytest
from lsprotocol import types as t
from lsprotocol.converters import get_converter
from pygls.lsp.server import LanguageServer
from pygls.protocol import default_converter
from pygls.workspace import TextDocument

from rlm_host.rpc.lsp import COMMANDS, NOTIFICATIONS, REQUESTS, Desk, server_capabilities
from rlm_host.rpc.lsp_features import Document, Features
from rlm_protocol.host import InitializeParams


def features(**more: object) -> Features:
    desk = dict(
        encoding="utf-16", root_uri=None, folders=(), sessions=None, runs=None, open_session=None
    )
    desk |= dict(tell=lambda *_: None, hints_changed=lambda: None)
    return Features(Desk(**{**desk, **more}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (None, "utf-16"),
        ([], "utf-16"),
        (["utf-32", "utf-16"], "utf-32"),
        (["x", "utf-8"], "utf-8"),
        (7, "utf-16"),
    ],
)
def test_the_table_announces_what_pygls_would(offered: object, chosen: str) -> None:
    params = InitializeParams(capabilities={"general": {"positionEncodings": offered}})
    table = server_capabilities(params)
    assert table["positionEncoding"] == chosen
    said = get_converter().unstructure(features(encoding=chosen).initialized.capabilities)
    assert {name: said.get(name) for name in table} == table


def test_every_announced_message_has_a_feature() -> None:
    manager = features().server.protocol.fm
    assert {*manager.features, *manager.builtin_features} >= REQUESTS | NOTIFICATIONS
    assert tuple(manager.commands) == COMMANDS


def test_a_builtin_handler_is_a_generator_that_yields_ours() -> None:
    """`Features._now` and `_command` drive these; pygls calls none of it an interface."""
    server = LanguageServer("s", "1", converter_factory=default_converter)
    for method in (t.INITIALIZE, t.WORKSPACE_EXECUTE_COMMAND, *NOTIFICATIONS):
        assert inspect.isgeneratorfunction(server.protocol.fm.builtin_features[method])

    def command(uri: str, line: int) -> str:
        return f"{uri}:{line}"

    server.command("c")(command)
    steps = server.protocol.fm.builtin_features[t.WORKSPACE_EXECUTE_COMMAND](
        t.ExecuteCommandParams("c", ["u", 3])
    )
    handler, args, kwargs = steps.send(None)
    assert (handler(*args, **kwargs), args, kwargs) == ("u:3", ("u", 3), {})


def test_the_registry_and_the_documents_are_where_we_take_them_from() -> None:
    server = LanguageServer("s", "1", converter_factory=default_converter)
    assert isinstance(server.protocol.fm.features, dict)
    made = features()
    assert isinstance(made.server.workspace.text_documents, dict)
    assert isinstance(made.server.workspace.folders, dict)


def test_lines_end_where_lsp_says() -> None:
    text = "a\x0cb\u2028c\r\nd\re\n"
    assert Document("file:///x", text).lines == ("a\x0cb\u2028c\r\n", "d\r", "e\n")
    # The day pygls does the same, `Document` can go.
    assert len(TextDocument("file:///x", text).lines) == 5

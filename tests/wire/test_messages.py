"""The params of requests, validated."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from acpd.errors import INVALID_PARAMS, RequestError
from acpd.wire import messages, titles
from tests.support.schema import check, definitions
from tests.wire.shapes import INVALID, JUNK, fullest, mended, mutated, spoilt, valid

TEXT = {"type": "text", "text": "hello"}
STDIO = {"name": "files", "command": "/bin/mcp", "args": ["-x"], "env": [{"name": "TOKEN", "value": "s3cret"}]}
HTTP = {"type": "http", "name": "web", "url": "https://host/mcp", "headers": [{"name": "Authorization", "value": "s3cret"}]}
ACP = {"type": "acp", "name": "inner", "serverId": "1"}
BLOCK = {"$ref": "#/$defs/ContentBlock"}
NEW = {"cwd": "/w", "mcpServers": []}
PARSERS: dict[str, Callable[[Any], Any]] = {
    "initialize": messages.parse_initialize,
    "session/new": messages.parse_new,
    "session/load": messages.parse_load,
    "session/resume": messages.parse_resume,
    "session/fork": messages.parse_fork,
    "session/list": messages.parse_list,
    "session/close": messages.parse_close,
    "session/delete": messages.parse_delete,
    "session/cancel": messages.parse_cancel,
    "session/prompt": messages.parse_prompt,
    "session/set_mode": messages.parse_set_mode,
    "session/set_config_option": messages.parse_set_config_option,
    "$/cancel_request": messages.parse_cancel_request,
    "authenticate": messages.parse_authenticate,
    "logout": messages.parse_logout,
}


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def refused(parse: Callable[[Any], Any], value: Any) -> str:
    with pytest.raises(RequestError) as caught:
        parse(value if value is UNSET else raw(value))
    assert caught.value.code == INVALID_PARAMS
    return str(caught.value)


@given(st.sampled_from(sorted(PARSERS)), JUNK, st.data())
def test_any_params_are_valid_or_invalid_params(method: str, value: Any, data: st.DataObject) -> None:
    """Nothing but RequestError(-32602) leaves a parser, whatever JSON a peer sends."""
    names = ["sessionId", "cwd", "mcpServers", "prompt", "protocolVersion", "value", "type", "requestId", "_meta"]
    candidates: list[Any] = [value, data.draw(st.dictionaries(st.sampled_from(names), JUNK))]
    for params in candidates:
        code = None
        try:
            PARSERS[method](raw(params))
        except RequestError as error:
            code = error.code
        assert code in {None, INVALID_PARAMS}


@pytest.mark.parametrize("method", sorted(set(PARSERS) - {"session/list", "logout"}))
def test_required_params_must_be_an_object(method: str) -> None:
    """Missing, null, an array or text instead of an object is -32602."""
    wrong: list[Any] = [UNSET, None, [], "x", 5]
    for params in wrong:
        assert refused(PARSERS[method], params).startswith("params")


def test_params_may_be_absent_where_all_members_are_optional() -> None:
    """No params for list and logout is the same as {}."""
    assert (None, None) == (messages.parse_list(UNSET).cwd, messages.parse_list(UNSET).cursor)
    assert messages.parse_logout(UNSET).meta is UNSET
    refused(messages.parse_list, None)


@pytest.mark.parametrize("version", [None, True, "1", -1, 65536, 1.5, 1.0, [], UNSET])
def test_the_protocol_version_is_a_small_integer(version: Any) -> None:
    """0 to 65535; a bool is no integer, and text is none either."""
    assert "protocolVersion" in refused(messages.parse_initialize, {} if version is UNSET else {"protocolVersion": version})


def test_initialize_tolerates_what_is_malformed_besides() -> None:
    """ClientCapabilities and clientInfo count as absent where they are malformed, member by member."""
    odd = messages.parse_initialize(
        raw({"protocolVersion": 1, "clientCapabilities": 5, "clientInfo": {"name": "x"}, "_meta": []})
    )
    assert (1, UNSET, UNSET, UNSET) == (odd.protocolVersion, odd.clientCapabilities, odd.clientInfo, odd.meta)
    capabilities = {"fs": {"readTextFile": True, "writeTextFile": 1}, "terminal": "yes", "plan": {}, "other": [1]}
    mostly = messages.parse_initialize(raw({"protocolVersion": 65535, "clientCapabilities": capabilities}))
    assert {"fs": {"readTextFile": True}, "plan": {}, "other": [1]} == json.loads(bytes(mostly.clientCapabilities))  # type: ignore[arg-type]


@given(valid("ClientCapabilities") | mutated("ClientCapabilities"))
@settings(max_examples=200)
def test_capabilities_are_mended_as_the_schema_says(value: Any) -> None:
    """What an agent is told of a client fits ClientCapabilities, and a valid one is told byte for byte."""
    got = messages.parse_initialize(raw({"protocolVersion": 1, "clientCapabilities": value})).clientCapabilities
    wanted = mended({"$ref": "#/$defs/ClientCapabilities"}, value)
    assert isinstance(got, Raw)
    assert wanted == json.loads(bytes(got))
    check("ClientCapabilities", json.loads(bytes(got)))
    if value == wanted:
        assert raw(value) == got


@pytest.mark.parametrize("cwd", ["x", ".", "", "~/x", "C:\\work", "file:///tmp", "/tmp/\0x", None, 5, ["/w"]])
def test_a_cwd_is_an_absolute_path(cwd: Any) -> None:
    """In every request that has one, also in a list's filter (there null means none)."""
    for parse, more in (
        (messages.parse_new, {"mcpServers": []}),
        (messages.parse_load, {"mcpServers": [], "sessionId": "s"}),
        (messages.parse_resume, {"sessionId": "s"}),
        (messages.parse_fork, {"sessionId": "s"}),
    ):
        assert "cwd" in refused(parse, {"cwd": cwd, **more})
    if cwd is not None:
        assert "cwd" in refused(messages.parse_list, {"cwd": cwd})


def test_any_absolute_path_is_a_cwd() -> None:
    """Spaces, other scripts, dashes, newlines: the file system decides, not acpd."""
    for cwd in ("/", "/a b", "/新聞", "/a-b/c", "/x\ny"):
        assert messages.parse_new(raw({"cwd": cwd, "mcpServers": []})).cwd == cwd


@pytest.mark.parametrize("entry", ["", "x", None, 5, "/a\0b"])
def test_an_additional_directory_is_never_dropped(entry: Any) -> None:
    """One bad entry fails the whole request; absent and null mean none."""
    assert "additionalDirectories" in refused(messages.parse_new, {**NEW, "additionalDirectories": ["/ok", entry]})
    assert "additionalDirectories" in refused(messages.parse_new, {**NEW, "additionalDirectories": "/ok"})
    assert messages.parse_new(raw({**NEW, "additionalDirectories": ["/a", "/b"]})).directories == ("/a", "/b")
    assert messages.parse_new(raw(NEW)).directories == ()
    assert messages.parse_new(raw({**NEW, "additionalDirectories": None})).directories == ()


def test_mcp_servers_are_required_by_new_and_load_only() -> None:
    """session/resume and fork may leave them out, which means none."""
    assert "mcpServers" in refused(messages.parse_new, {"cwd": "/w"})
    assert "mcpServers" in refused(messages.parse_load, {"cwd": "/w", "sessionId": "s"})
    assert bytes(messages.parse_resume(raw({"cwd": "/w", "sessionId": "s"})).mcpServers) == b"[]"
    assert bytes(messages.parse_fork(raw({"cwd": "/w", "sessionId": "s"})).mcpServers) == b"[]"
    assert "sessionId" in refused(messages.parse_load, NEW)


def test_a_member_of_another_request_is_nobodys_business() -> None:
    """Keys that the protocol does not know for a method are tolerated, whatever they hold."""
    assert messages.parse_new(raw({**NEW, "sessionId": 5})).cwd == "/w"


def test_good_servers_pass_as_they_were_written() -> None:
    """Every transport, byte for byte."""
    servers = [STDIO, {**STDIO, "type": "stdio"}, HTTP, {**HTTP, "type": "sse", "url": "http://[::1]:8080"}, ACP]
    text = json.dumps(servers, indent=1).encode()
    request = messages.parse_new(Raw(b'{"cwd":"/w","mcpServers":%b}' % text))
    assert text == bytes(request.mcpServers)


def test_arrays_that_are_null_are_empty() -> None:
    """The schema has them default on null; what goes on to the agent is an array."""
    assert bytes(messages.parse_new(raw({"cwd": "/w", "mcpServers": None})).mcpServers) == b"[]"
    request = messages.parse_new(raw({"cwd": "/w", "mcpServers": [{**STDIO, "args": None}, {**HTTP, "headers": None}]}))
    assert [{**STDIO, "args": []}, {**HTTP, "headers": []}] == json.loads(bytes(request.mcpServers))


@pytest.mark.parametrize(
    ("entry", "member"),
    [
        ({}, "name"),
        (5, "[1]"),
        ({"name": "x"}, "command"),
        ({**STDIO, "name": ""}, "name"),
        ({**STDIO, "command": ""}, "command"),
        ({**STDIO, "command": ["a"]}, "command"),
        ({**STDIO, "args": "--a"}, "args"),
        ({**STDIO, "args": [5]}, "args"),
        ({**STDIO, "env": {"TOKEN": "s3cret"}}, "env"),
        ({**STDIO, "env": ["s3cret"]}, "env"),
        ({**STDIO, "env": [{"name": "TOKEN", "value": ["s3cret"]}]}, "env[0].value"),
        ({**STDIO, "env": [{"name": {"s3cret": 1}, "value": "s3cret"}]}, "env[0].name"),
        ({**STDIO, "type": "s3cret"}, "type"),
        ({**STDIO, "type": 5}, "type"),
        ({"type": "http", "name": "x", "url": "http://h"}, "headers"),
        ({**HTTP, "headers": [{"name": "Authorization", "value": {"s3cret": 1}}]}, "headers[0].value"),
        ({**HTTP, "headers": "s3cret"}, "headers"),
        ({"type": "acp", "name": "x"}, "serverId"),
    ]
    + [
        ({**HTTP, "url": url}, "url")
        for url in ("", "not a url", "s3cret", "ftp://h", "http://", "http:///p", "https://h:99999", "http://h:x")
    ]
    + [({**HTTP, "url": url}, "url") for url in ("http://a b", "http://h/\n", "http://u:s3cret@", "//h", "http://[::1")],
)
def test_a_bad_server_is_named_without_a_value(entry: Any, member: str) -> None:
    """The index and the member are named; values of env and headers stay out of messages."""
    message = refused(messages.parse_new, {"cwd": "/w", "mcpServers": [STDIO, entry]})
    assert "mcpServers[1]" in message
    assert member in message
    assert "s3cret" not in message


@pytest.mark.parametrize(
    "url", ["http://h", "HTTPS://H:443/p?q#f", "http://u:p@h", "http://127.0.0.1:9/mcp", "http://[::1]/", "http://h:/"]
)
def test_web_urls_have_a_host(url: str) -> None:
    """Http or https, with any user, port and path."""
    assert messages.parse_new(raw({"cwd": "/w", "mcpServers": [{**HTTP, "url": url}]})).cwd == "/w"


def test_a_prompt_passes_as_it_was_written() -> None:
    """Blocks of every type stay raw, white space and escapes included."""
    text = b'[ {"text":"\\u00e9","type":"text", "x":1.0e1},{"type":"resource","resource":{"uri":"a:b","blob":"AA=="}} ]'
    request = messages.parse_prompt(Raw(b'{"sessionId":"s","prompt":%b,"_meta":{"a":1}}' % text))
    assert ("s", text, b'{"a":1}') == (request.sessionId, bytes(request.prompt), bytes(request.meta))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "params.prompt must not be empty"),
        (None, "params.prompt"),
        ("hello", "params.prompt"),
        ({}, "params.prompt"),
        ([TEXT, {"type": "hologram"}], "params.prompt[1].type is not a known one"),
        ([{"text": "x"}], "params.prompt[0].type is missing"),
        ([TEXT, TEXT, {"type": "text"}], "params.prompt[2].text is missing"),
        ([{"type": "text", "text": 5, "annotations": 5}], "params.prompt[0].text is malformed"),
        ([{"type": "image", "data": "AA=="}], "params.prompt[0].mimeType is missing"),
        ([{"type": "audio", "mimeType": "a/b"}], "params.prompt[0].data is missing"),
        ([{"type": "resource_link", "uri": "a:b"}], "params.prompt[0].name is missing"),
        ([{"type": "resource", "resource": {"uri": "a:b"}}], "params.prompt[0].resource is malformed"),
        ([{"type": "resource", "resource": {"text": "x"}}], "params.prompt[0].resource.uri is missing"),
        (["hello"], "params.prompt[0]"),
    ],
)
def test_a_bad_block_is_named_by_its_index(prompt: Any, says: str) -> None:
    """Items of a request's array are never dropped: the request fails, and says where."""
    assert refused(messages.parse_prompt, {"sessionId": "s", "prompt": prompt}).startswith(says)


def test_each_single_fault_of_a_block_is_treated_as_the_schema_says() -> None:
    """Malformed optional members are left out, so that agent, log and clients get valid blocks; the rest is refused."""
    for block in fullest(definitions()["ContentBlock"]):
        for bad in (block, *spoilt(block)):
            params = raw({"sessionId": "s", "prompt": [TEXT, bad]})
            wanted = mended(BLOCK, bad)
            if wanted is INVALID:
                with pytest.raises(RequestError, match=r"params\.prompt\[1\]"):
                    messages.parse_prompt(params)
            else:
                assert [TEXT, wanted] == json.loads(bytes(messages.parse_prompt(params).prompt))


@pytest.mark.parametrize("method", ["session/close", "session/delete", "session/cancel", "session/prompt", "session/set_mode"])
def test_a_session_is_named_by_text(method: str) -> None:
    """SessionId is required and text."""
    rest = {"prompt": [TEXT], "modeId": "m"}
    assert "sessionId" in refused(PARSERS[method], rest)
    assert "sessionId" in refused(PARSERS[method], {**rest, "sessionId": 5})
    assert PARSERS[method](raw({**rest, "sessionId": "s"})).sessionId == "s"


@pytest.mark.parametrize(
    ("more", "value"),
    [
        ({"value": "x"}, "x"),
        ({"value": "x", "type": "select"}, "x"),
        ({"value": "x", "type": 5}, "x"),
        ({"value": True, "type": "boolean"}, True),
        ({"value": True}, None),
        ({"value": False, "type": "select"}, None),
        ({"value": True, "type": 5}, None),
        ({"value": 5, "type": "boolean"}, None),
        ({"value": None}, None),
        ({}, None),
    ],
)
def test_an_option_is_set_to_text_or_with_its_type_to_a_bool(more: dict[str, Any], value: Any) -> None:
    """A bool needs type "boolean"; everything else is text."""
    params = {"sessionId": "s", "configId": "c", **more}
    if value is None:
        assert "value" in refused(messages.parse_set_config_option, params)
    else:
        assert messages.parse_set_config_option(raw(params)).value is value or value == "x"
        check("SetSessionConfigOptionRequest", params)


@pytest.mark.parametrize(
    ("identifier", "valid_one"), [("x", True), (0, True), (-5, True), (None, True), (1.0, False), (True, False), ([], False)]
)
def test_a_request_is_cancelled_by_its_id(identifier: Any, valid_one: bool) -> None:
    """The id stays as it was written."""
    if valid_one:
        assert json.dumps(identifier).encode() == bytes(messages.parse_cancel_request(raw({"requestId": identifier})).requestId)
    else:
        assert "requestId" in refused(messages.parse_cancel_request, {"requestId": identifier})


def title(*texts: str) -> str:
    return messages.first_line_title(json.dumps([{"type": "text", "text": text} for text in texts]).encode())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("hello", "hello"),
        ("\n \n  hello  there \nmore", "hello there"),
        ("<system-reminder>be kind\nand short</system-reminder>\nwrite a hello script\nplease", "write a hello script"),
        ("<context ref='a'>x</context><context>y</context> go on", "go on"),
        ("fix <system-reminder>x</system-reminder>this", "fix this"),
        ('fix this <context a="b">\nmany\nlines\n</context>now', "fix this now"),
        ("<ide_opened_file>/a/b.py</ide_opened_file>\nwhy?", "why?"),
        ("<file path='x'/>\n<selection>s</selection>what is it", "what is it"),
        ("hello<system-reminder>never closed", "hello"),
        ("what does <context> do", "what does <context> do"),
        ("<div> is broken", "<div> is broken"),
        ("a < b and b > c", "a < b and b > c"),
        ("<system-reminder>only</system-reminder>", ""),
        ("", ""),
        ("\x1b[31mred\x1b[0m\x07 alert\u202e", "red alert"),
        ("one\u2028two", "one"),
        ("tab\tand\xa0space", "tab and space"),
        ("x" * 200, "x" * 80),
        ("é" * 81, "é" * 80),
        ("x" * 79 + "e\u0301" + "y", "x" * 79),
        ("x" * 78 + "👩\u200d💻 y", "x" * 78),
    ],
)
def test_a_title_is_the_first_line_that_a_person_wrote(text: str, wanted: str) -> None:
    """Injected blocks and control characters are cut; 80 characters, no half ones."""
    assert wanted == title(text)


@pytest.mark.parametrize(
    ("text", "is_one"), [("/compact", True), ("/a:b c", True), ("/home/x is full", False), ("a /b", False)]
)
def test_a_command_is_told_from_a_title(text: str, is_one: bool) -> None:
    """A name behind a slash, and no path."""
    assert is_one == titles.is_command(text)


def test_a_title_may_come_from_a_later_block() -> None:
    """Editors put context into blocks of its own before the text; a prompt without text has no title."""
    assert title("<context>x</context>", "the question") == "the question"
    assert messages.first_line_title(json.dumps([{"type": "image", "data": "", "mimeType": "a/b"}, TEXT]).encode()) == "hello"
    assert messages.first_line_title(b'[{"type":"resource_link","uri":"a:b","name":"n"}]') == ""
    assert messages.first_line_title(b"5") == ""


TAGS = [
    "<system-reminder>",
    "</system-reminder>",
    "<context a='b'>",
    "</context>",
    "<a>",
    "</a>",
    "<b/>",
    "x",
    "\n",
    " ",
    "\x00",
    "\u0301",
]


@given(st.text() | st.lists(st.sampled_from(TAGS), max_size=100).map("".join))
def test_a_title_is_one_short_line(text: str) -> None:
    """Whatever the prompt is."""
    found = title(text)
    assert len(found) <= 80
    assert found == found.strip()
    assert len(found.splitlines()) <= 1
    assert "<system-reminder>" not in found


@pytest.mark.parametrize(
    "part",
    ["<system-reminder>", "<context ", "<context>", "<a>", "<a></a>", "<a/>", "<", "</context>", " \n", "<context></context>"],
)
def test_a_title_takes_linear_time(part: str) -> None:
    """A prompt of megabytes that is made of tags is no trouble."""
    begin = time.perf_counter()
    title(part * 100_000)
    assert time.perf_counter() - begin < 5

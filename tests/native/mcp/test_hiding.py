"""No value of env and headers is shown."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from acpd.native.mcp.hiding import Secrets

VALUES = st.text(st.characters(codec="utf-8", exclude_characters="*"), min_size=8, max_size=40).filter(
    lambda text: len(text.strip()) >= 8
)


@given(VALUES, st.text(max_size=20), st.text(max_size=20))
def test_a_value_is_hidden_in_every_spelling(value: str, before: str, after: str) -> None:
    """As it is, in JSON, in a URL, in base64: an error that quotes a value shows none of it."""
    value = value.strip()
    secrets = Secrets({"ANY": value}, (), "")
    spellings = (value, json.dumps(value)[1:-1], quote(value), base64.b64encode(value.encode()).decode())
    for spelling in spellings:
        assert value not in secrets.shown(f"{before}{spelling}{after}").replace("***", "")


def test_headers_and_urls() -> None:
    """The word of a header, credentials and values of a query in a URL."""
    secrets = Secrets(
        {}, [("Authorization", "Bearer canary-4711")], "https://me:pass-word-1@host/mcp?api_key=query-4711&page=12"
    )
    shown = secrets.shown("with canary-4711 at https://me:pass-word-1@host/mcp?api_key=query-4711")
    assert not [value for value in ("canary", "pass-word", "query-4711") if value in shown]
    assert "host" in shown


def test_results_keep_what_is_no_secret() -> None:
    """In a result the value of a variable is hidden only if the variable is named like a secret."""
    secrets = Secrets({"API_TOKEN": "canary-4711", "FOLDER": "/home/me/project"}, (), "")
    assert "*** in /home/me/project/a.py" == secrets.told("canary-4711 in /home/me/project/a.py")
    assert "*** in ***/a.py" == secrets.shown("canary-4711 in /home/me/project/a.py")


def test_results_keep_words_of_headers() -> None:
    """A header's value is hidden in a result only if the header is named like a secret, in what is about the server always."""
    headers = [("Accept", "application/json"), ("X-Api-Key", "canary-4711"), ("Cookie", "id=canary-4712")]
    secrets = Secrets({}, headers, "https://host/mcp?lang=canary-4713&lang=canary-4714")
    text = "application/json canary-4711 id=canary-4712 canary-4713 canary-4714"
    assert "application/json *** *** canary-4713 canary-4714" == secrets.told(text)
    assert "*** *** *** *** ***" == secrets.shown(text)


def test_nothing_to_hide() -> None:
    """Without values texts stay as they are."""
    assert "a b" == Secrets({}, (), "").shown("a b") == Secrets({"A": "1"}, (), "").told("a b")

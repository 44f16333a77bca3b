"""In which forms a secret may stand in a text that somebody else wrote."""

from __future__ import annotations

INSIDE = 8
"""Bytes of a secret that is looked for inside of something longer that was encoded as a whole, as in `Basic` credentials."""


def spellings(secret: str) -> set[str]:
    """The secret as it is, in JSON, in URLs, and in base64 of both alphabets: alone, and as a part of something longer."""
    import json
    from urllib.parse import quote, quote_plus

    data = secret.encode("utf-8", "surrogateescape")
    plain = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return plain | {quote(data), quote(data, safe=""), quote_plus(data)} | _base64(data)


def _base64(data: bytes) -> set[str]:
    """Of a part only those letters are known that no neighbour has bits in."""
    from base64 import b64encode, urlsafe_b64encode

    found = set[str]()
    for encode in (b64encode, urlsafe_b64encode):
        found.add(encode(data).decode())
        found.add(encode(data).decode().rstrip("="))
        for before, first in ((0, 0), (1, 2), (2, 3)) if len(data) >= INSIDE else ():
            found.add(encode(bytes(before) + data).decode()[first : (before + len(data)) * 8 // 6])
    return found

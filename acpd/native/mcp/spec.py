"""What a session's MCP server is: how it is reached, and what it gets from us."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from acpd.agents.process import LINK_VARIABLE
from acpd.api.shapes import McpServer, RemoteServer
from acpd.native.mcp.hiding import Secrets

INHERITED = (
    *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE"),
    *("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"),
    LINK_VARIABLE,
)
"""Variables of ours that a server gets: what programs need to run at all. Keys of models are not among them. By the link's
name acpd finds what is left of an agent that was killed."""


class Spec:
    """One server. `kind`: how it is reached. No `repr` shows its values."""

    kind: Literal["stdio", "http", "sse"] = "stdio"

    def __init__(self, server: McpServer) -> None:
        self.name = server.name
        self.command: Sequence[str] = ()
        self.env: dict[str, str] = {}
        self.url = ""
        self.headers: list[tuple[str, str]] = []
        if isinstance(server, RemoteServer):
            self.kind, self.url, self.headers = server.type, server.url, list(server.headers)
        else:
            self.command, self.env = (server.command, *server.args), dict(server.env)
        self.secrets = Secrets(self.env, self.headers, self.url)

    def environment(self) -> dict[str, str]:
        """The given one over a minimal one of ours."""
        return {name: os.environ[name] for name in INHERITED if name in os.environ} | self.env

"""The MCP servers of a session: connected in parallel, kept alive, their tools handed to the session's toolbox.

`Servers` is the one way in. Modules: `spec` (what to connect to), `hiding` (no value of env and headers is shown), `child`
(a server's process), `link`, `pipe`, `web` (one connection; only they import the `mcp` package, so this is done in a thread),
`server` (one server's life), `servers` (all of a session), `names`, `tools`, `reading`, `results` (what a model sees).
"""

"""What the offline agent says of itself."""

from __future__ import annotations

VERBS = {
    "say TEXT": "answer with this text",
    "think [TEXT]": "a thought, then an answer",
    "plan [A|B|C]": "a plan of these steps, done one by one",
    "tool [NAME]": "a tool call, from pending to completed",
    "ask [NAME]": "a tool call that needs a permission; in the mode `code` it has it",
    "slow N [MS]": "count to N, MS milliseconds apart (default 200)",
    "stream N SIZE": "N updates of SIZE characters",
    "title TEXT": "rename the session",
    "help": "these words",
}

OFFLINE = "offline"
"""The name under which the offline agent keeps what it remembers of a session."""

INSTALL = (
    "in the checkout of acpd: make setup, pip install '.[models]' or pipx install --force '.[models]', as it was installed"
)
"""What gives an acpd-agent without libraries those for models and MCP."""

SETUP_METHOD = {
    "type": "terminal",
    "id": "setup",
    "name": "Choose a model",
    "description": "Asks in a terminal for a model and its key, tries them, and writes them down",
    "args": ["--setup"],
    "env": {},
}
"""ACP v1 AuthMethod; only for clients with `auth.terminal`."""

_TABLE = "\n".join(f"  {verb:<16}{what}" for verb, what in VERBS.items())
WORDS = f"""\
Each line of a prompt is one of these, with or without a / before it; anything else is repeated:

{_TABLE}
"""

NO_MODEL = """\
No model is configured: this is acpd's offline agent. It follows simple words and understands nothing. \
To give it a model, run `acpd-agent --setup` in a terminal. \
To talk to another agent, run it through acpd with `acpd run -- COMMAND ARG...`, or name it in acpd.toml \
(`acpd paths` says where that is) as [agents.NAME] with command = ["COMMAND", "ARG"]. \
Say `help` for the words.

"""

HELP = f"""\
usage: acpd-agent [--offline | --until-setup] [OPTION VALUE]...
       acpd-agent --setup [--model PROVIDER:MODEL [--base-url URL] [--key-env NAME | --key-stdin] [--untested]]
       acpd-agent --version | --help

An agent that speaks the Agent Client Protocol on stdin and stdout. --setup asks for a model, tries it and writes it into
acpd.toml; with --model it asks nothing. A key is read from stdin or from a variable, never from the command line.

  --config FILE       read this acpd.toml, its table [agents.native]
  --model P:M         the model, such as anthropic:claude-sonnet-5-5
  --base-url URL      where it is, if not at the provider's own address
  --key-env NAME      the variable that holds the key
  --thinking LEVEL    default, off, minimal, low, medium, high, xhigh, max
  --mode MODE         ask, code, plan: the one in which a session begins
  --key-stdin         of --setup: the key is the first line of stdin
  --untested          of --setup: write it without asking the model

Without a model, with --offline, and with --until-setup as long as acpd.toml names no model, what it answers is decided by the
words of the prompt alone, the same every time:

{WORDS}
Its turn counter and mode are kept by the client, where that is acpd, and are there again after a restart.
"""

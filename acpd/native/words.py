"""What the offline agent says of itself."""

from __future__ import annotations

VERSION = "0.1.0"
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

_TABLE = "\n".join(f"  {verb:<16}{what}" for verb, what in VERBS.items())
WORDS = f"""\
Each line of a prompt is one of these, with or without a / before it; anything else is repeated:

{_TABLE}
"""

NO_MODEL = """\
No model is configured: this is acpd's offline agent. It follows simple words and understands nothing. \
To talk to a real agent, run it through acpd with `acpd run -- COMMAND ARG...`, or name it in acpd.toml \
(`acpd paths` says where that is) as [agents.NAME] with command = ["COMMAND", "ARG"]. \
Say `help` for the words.

"""

HELP = f"""\
usage: acpd-agent [--offline] [--version] [--help]

An agent that speaks the Agent Client Protocol on stdin and stdout. Today it has no model, with or without
--offline: what it answers is decided by the words of the prompt alone, the same every time.

{WORDS}
Its turn counter and mode are kept by the client, where that is acpd, and are there again after a restart.
"""

"""An agent that answers each method with text of a file: `canned.py FILE`, JSON {method: raw text of result or error member}.

For answers that no honest agent would give. `$ID` in a text is the inner session id, `s1`. A method that is not in the
file is answered with an empty result. What stands under "before METHOD" and "after METHOD" is a list of raw lines that
are written before or behind that answer.
"""

from __future__ import annotations

import json
import sys

INITIALIZE = '"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{}}}}'
USUAL = {
    "initialize": INITIALIZE,
    "session/new": '"result":{"sessionId":"s1"}',
    "session/prompt": '"result":{"stopReason":"end_turn"}',
}


def write(line: str) -> None:
    sys.stdout.buffer.write(line.encode("utf-8", "surrogatepass") + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        answers = USUAL | json.load(file)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method = message.get("method")
        if method is None or "id" not in message:
            continue
        for extra in answers.get(f"before {method}", []):
            write(extra)
        said = answers.get(method, '"result":{}')
        if said:
            write(f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},{said}}}')
        for extra in answers.get(f"after {method}", []):
            write(extra)


if __name__ == "__main__":
    main()

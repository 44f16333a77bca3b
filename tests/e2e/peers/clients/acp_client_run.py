# Runs under an interpreter that has acp-client; acpd's own has not.
# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false
"""acp-client's life in one process: start or load, ask one question, report, stay until stdin ends.

argv[1] is `{"command": [...], "cwd": "...", "session": id or null, "text": "...", "cancel": n}`, where the question is
cancelled once n updates came (0: never); one JSON line comes out:
`{"session": id, "replayed": [update...], "asked": n, "answer": "...", "updates": [...]}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from acp_client import Agent


async def main() -> None:
    """Ask once."""
    setup = json.loads(sys.argv[1])
    asked: list[str] = []

    async def permission(request: dict[str, Any]) -> str | None:
        chosen = next((option["optionId"] for option in request["options"] if option["kind"] == "allow_once"), None)
        asked.append(str(chosen))
        return chosen

    replayed: list[Any] = []
    updates: list[Any] = []
    agent = Agent(setup["command"], Path(setup["cwd"]), permission=permission, session=setup["session"])
    await agent.start(on_update=replayed.append)

    def take(update: Any) -> None:
        updates.append(update)
        if len(updates) == setup["cancel"]:
            agent.cancel()

    answer = await agent.ask(setup["text"], on_update=take)
    report = {"session": agent.session, "replayed": replayed, "asked": asked, "answer": answer, "updates": updates}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await agent.stop()


if __name__ == "__main__":
    asyncio.run(main())

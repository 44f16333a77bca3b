"""The stores in this folder, one for each format version and backend, as the acpd of that time wrote them.

`python -m tests.stores.make` makes those of the present version, once: what a version has written is never written again,
because what is tested is that it can still be read. Run it when the format of logs or of the database gets a new version.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from acpd.wire.lines import VERSION
from tests.support.client import Client

HERE = Path(__file__).parent
BACKENDS = ("workspace", "json", "sqlite")
PROMPTS = ("say hello", "think well", "plan", "tool read", "ask write")
IMAGE = "iVBORw0KGgo" + "A" * 70_000


def make(folder: Path, backend: str) -> None:
    """A store with a conversation, a fork of it, one with a big image, and one of another user."""
    with tempfile.TemporaryDirectory() as home:
        env = {"ACPD_STORAGE_BACKEND": backend, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}
        acpd = str(Path(sys.executable).with_name("acpd"))
        for user in ((), ("--user", "alice")) if backend == "workspace" else ((),):
            command = [acpd, *user, "run", "--name", "demo", "--", "acpd-agent", "--offline"]
            with Client(command, Path(home), env=env, cwd=Path("/")) as client:
                client.initialize(session={"configOptions": {"boolean": {}}})
                talk(client)
        shutil.copytree(Path(home) / "data", folder, ignore=shutil.ignore_patterns("locks", "*.lock", "*-shm", "*-wal"))


def talk(client: Client) -> None:
    session = client.new("/")
    client.call("session/set_mode", {"sessionId": session, "modeId": "ask"})
    for prompt in PROMPTS:
        client.prompt(session, prompt)
    fork = client.call("session/fork", {"sessionId": session, "cwd": "/", "mcpServers": []})["sessionId"]
    client.prompt(fork, "say something else")
    picture = client.new("/")
    blocks = [{"type": "text", "text": "say it"}, {"type": "image", "mimeType": "image/png", "data": IMAGE}]
    client.call("session/prompt", {"sessionId": picture, "prompt": blocks})


def main() -> int:
    folder = HERE / f"format-{VERSION}"
    if folder.exists():
        sys.stderr.write(f"{folder} is there already, and stays as it is\n")
        return 1
    for backend in BACKENDS:
        make(folder / backend, backend)
    return 0


if __name__ == "__main__":
    sys.exit(main())

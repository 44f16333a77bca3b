"""acpd with its own agent and the scripted model, and what is on the disk of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.support import proc
from tests.support.client import Client, Json, Policy, allow
from tests.support.commands import acpd
from tests.support.models import ModelServer

STATES = "data/agents/native/context"
LOGS = "data/agents/native/sessions"


class Stage:
    """A store in a folder. Each `client` is a new acpd on it, and with it a new agent."""

    def __init__(self, tmp: Path, model: ModelServer, *words: str) -> None:
        """`words`: more for acpd's command line."""
        self.home, self.cwd, self.model, self.mark = tmp / "home", tmp / "work", model, proc.new_mark()
        self.cwd.mkdir(exist_ok=True)
        self._words = words
        config = self.home / "config"
        config.mkdir(parents=True, exist_ok=True)
        table = f'model = "openai:fake-model"\nbase_url = "{model.url}/v1"\n'
        (config / "acpd.toml").write_text(f'[storage]\nsync = "process"\n[agents.native]\n{table}')

    @contextlib.contextmanager
    def client(self, policy: Policy = allow, **capabilities: Any) -> Generator[Client]:
        command = acpd("--standalone", "--agent", "native", *self._words)
        env = {"ACPD_HOME": str(self.home)}
        with Client(command, self.cwd, mark=self.mark, env=env, policy=policy) as client:
            client.initialize(**capabilities)
            yield client

    def state(self, session: str, name: str) -> Path:
        return self.home / STATES / session / f"{name}.json"

    def value(self, session: str, name: str) -> Any:
        """What is kept under this name; None: nothing."""
        file = self.state(session, name)
        return json.loads(file.read_bytes()) if file.exists() else None

    def log(self, session: str) -> list[Json]:
        """The lines of the log behind its header."""
        lines = (self.home / LOGS / f"{session}.log.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines][1:]

    def told(self) -> str:
        """All that the model was told with its last request."""
        return json.dumps(self.model.bodies[-1], ensure_ascii=False)

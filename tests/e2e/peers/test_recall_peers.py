"""Models of real agents find what another agent has said: by acpd's MCP server, our own agent over its link."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.peers import checks
from tests.e2e.peers.drive import Editor, Stage
from tests.e2e.peers.table import Place
from tests.support import proc, store

pytestmark = [pytest.mark.peers, pytest.mark.e2e]

SAID = "the harbour gate opens at 4711"
NAMES = {
    "native": "session_search",
    "claude": "mcp__acpd__session_search",
    "opencode": "acpd_session_search",
    "gemini": "mcp_acpd_session_search",
}
"""What each agent calls the tool to its model. (codex has it in a namespace, of which the fake model knows nothing.)"""
TRIES = 20
"""Prompts until the tool is there: some agents let their servers start beside the first ones."""


class Tooled(Stage):
    """An agent whose acpd has `[sessions] tools`, on the store in this folder."""

    def __init__(self, place: Place, agent_name: str, home: Path) -> None:
        super().__init__(place, "python", agent_name)
        self.home = home

    def command(self) -> tuple[list[str], dict[str, str]]:
        command, env = super().command()
        return command, {**env, "ACPD_HOME": str(self.home), "ACPD_SESSIONS_TOOLS": "true"}


def test_our_agent_finds_what_codex_said(place: Place) -> None:
    """codex says something; our agent's model, asked later and in a session of its own, finds it by session_search."""
    find_what_codex_said(place, "native")


@pytest.mark.slow
@pytest.mark.parametrize("agent_name", ["claude", "opencode", "gemini"])
def test_big_agents_find_what_codex_said(full_place: Place, agent_name: str) -> None:
    """The same with the big agents."""
    find_what_codex_said(full_place, agent_name)


def find_what_codex_said(place: Place, agent_name: str) -> None:
    home = place.folder / "acpd"
    stages: list[Stage] = []
    try:
        for name, folder in (("codex", "one"), (agent_name, "two")):
            (place.folder / folder).mkdir()
            stages.append(Tooled(Place(place.installed, place.model_url, place.folder / folder), name, home))
        codex, other = stages
        with codex.editor() as editor:
            source = codex.begin(editor)
            assert editor.call("prompt", sessionId=source, text=f"[[say {SAID}]]")["stopReason"] == "end_turn"
        proc.assert_none_left(codex.mark)
        with other.editor() as editor:
            session = other.begin(editor)
            found = _searched(editor, session, NAMES[agent_name])
            assert f"[codex/{source} " in found
            assert re.search(rf"\[ASSISTANT\]: [^\[]*{SAID}", found)
        proc.assert_none_left(other.mark)
        for stage in stages:
            checks.assert_valid(stage.runs[-1])
        assert not [line for line in store.log(home, session).lines if b"--session" in line]
    finally:
        for stage in stages:
            stage.close()


def _searched(editor: Editor, session: str, name: str) -> str:
    """The update that has what the model was told."""
    text = f'[[tool {name} {{"query": "harbour gate", "agentId": "codex"}}]]'
    for _ in range(TRIES):
        assert editor.call("prompt", sessionId=session, text=text)["stopReason"] == "end_turn"
        for update in (params["update"] for params in editor.updates):
            if "Found 2 matches" in str(update) or "Found 1 match " in str(update):
                return str(update)
    raise AssertionError(f"nothing was found: {editor.updates[-3:]}")

"""The peers without acpd: what fails here is not acpd's."""

from __future__ import annotations

import pytest

from tests.e2e.peers import checks
from tests.e2e.peers.drive import Stage
from tests.e2e.peers.table import AGENTS, Place
from tests.support import fold

pytestmark = [pytest.mark.peers, pytest.mark.slow]


@pytest.mark.parametrize("client_name", ["python", "typescript"])
@pytest.mark.parametrize("agent_name", list(AGENTS))
def test_peer_works_bare(full_place: Place, agent_name: str, client_name: str) -> None:
    """Each client has a tool call with a permission, and a cancelled turn, with each agent directly."""
    stage = Stage(full_place, client_name, agent_name, through=False)
    try:
        with stage.editor() as editor:
            session = stage.begin(editor)
            result = editor.call("prompt", sessionId=session, text=stage.agent.tool(full_place))
            assert result["stopReason"] == "end_turn"
            assert len(editor.of("permission")) == 1
            assert {tool["status"] for tool in fold.fold(editor.shown).tools.values()} == {"completed"}
            result = editor.call("prompt", sessionId=session, text=stage.agent.slow, cancelAfter=2)
            assert result["stopReason"] == "cancelled"
            editor.call("prompt", sessionId=session, text=stage.agent.plain)
            checks.assert_handled(editor.events)
    finally:
        stage.close()

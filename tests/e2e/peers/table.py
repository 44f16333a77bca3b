"""The agents and clients that are tested: how each is started, and what makes it do what."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.e2e.peers.install import Installed

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Place:
    """Where one test runs: its peers, the fake model's URL, and a folder of its own."""

    installed: Installed
    model_url: str
    folder: Path

    @property
    def work(self) -> Path:
        """The session's cwd."""
        return self.folder / "work"

    @property
    def home(self) -> Path:
        """The agent's home: what it writes for itself."""
        return self.folder / "home"


@dataclass(frozen=True)
class Launch:
    """A command and what its environment has besides PATH."""

    command: list[str]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """One agent: how it is started and which prompts provoke what."""

    name: str
    group: str
    launch: Callable[[Place], Launch]
    tool: Callable[[Place], str]
    """The prompt of a real tool call that asks for permission first."""
    plain: str = "[[say hello there]]"
    slow: str = "[[slow 60 50]]"
    """The prompt of a stream that takes three seconds unless cancelled."""
    mode: str | None = None
    """The mode to set after session/new, if it asks for permission in that one only."""
    authenticate: str | None = None
    permission: bool = True


def _directive(name: str, arguments: Mapping[str, object]) -> str:
    return f"[[tool {name} {json.dumps(arguments)}]]"


def _py_agent(place: Place) -> Launch:
    return Launch([str(place.installed.groups["push"].python), str(HERE / "agents" / "py_agent.py")])


def _ts_agent(place: Place) -> Launch:
    modules = {"PEER_MODULES": str(place.installed.groups["push"].modules)}
    return Launch([str(place.installed.node_bin / "node"), str(HERE / "agents" / "ts_agent.mjs")], modules)


def _native(place: Place) -> Launch:
    env = {"ACPD_AGENTS_NATIVE_MODEL": "openai:fake-model", "ACPD_AGENTS_NATIVE_BASE_URL": f"{place.model_url}/v1"}
    return Launch([str(Path(sys.executable).with_name("acpd-agent"))], env)


def _native_tool(place: Place) -> str:
    plan = _directive("plan", {"steps": [{"content": "make it", "status": "in_progress"}]})
    return "[[think about it]]" + plan + _directive("run", {"command": "echo made by a tool > made.txt"})


def _deepagents(place: Place) -> Launch:
    env = {"MODEL_URL": place.model_url, "DEEP_STATE": str(place.home / "deep.sqlite"), "LANGSMITH_TRACING": "false"}
    return Launch([str(place.installed.groups["push"].python), str(HERE / "agents" / "deep_agent.py")], env)


def _deepagents_tool(place: Place) -> str:
    plan = _directive("write_todos", {"todos": [{"content": "make it", "status": "in_progress"}]})
    return plan + _directive("write_file", {"file_path": str(place.work / "made.txt"), "content": "made by a tool\n"})


def _codex(place: Place) -> Launch:
    config = (
        'model = "fake-model"\nmodel_provider = "fake"\napproval_policy = "on-request"\nsandbox_mode = "read-only"\n'
        f'[model_providers.fake]\nname = "fake"\nbase_url = "{place.model_url}/v1"\nwire_api = "responses"\n'
        'env_key = "FAKE_KEY"\nrequires_openai_auth = false\n'
    )
    folder = place.home / "codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(config)
    env = {"CODEX_HOME": str(folder), "FAKE_KEY": "x", "NO_BROWSER": "1"}
    return Launch([place.installed.command("push", "codex-acp")], env)


def _codex_tool(place: Place) -> str:
    arguments = {
        "cmd": "echo made by a tool > made.txt",
        "sandbox_permissions": "require_escalated",
        "justification": "to make it",
    }
    plan = _directive("update_plan", {"plan": [{"step": "make it", "status": "in_progress"}]})
    return plan + _directive("exec_command", arguments)


def _claude(place: Place) -> Launch:
    env = {
        "ANTHROPIC_BASE_URL": place.model_url,
        "ANTHROPIC_API_KEY": "sk-ant-fake",
        "CLAUDE_CONFIG_DIR": str(place.home / "claude"),
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    return Launch([place.installed.command("full", "claude-agent-acp")], env)


def _claude_tool(place: Place) -> str:
    return _directive("Bash", {"command": "echo made by a tool > made.txt", "description": "make it"})


def _opencode(place: Place) -> Launch:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{place.model_url}/v1", "apiKey": "x"},
        "models": {"fake-model": {"name": "Fake"}},
    }
    config = {"model": "fake/fake-model", "permission": {"bash": "ask", "edit": "ask"}, "provider": {"fake": provider}}
    env = {
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
    }
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        env[f"XDG_{name}_HOME"] = str(place.home / name.lower())
    return Launch([place.installed.command("full", "opencode"), "acp"], env)


def _opencode_tool(place: Place) -> str:
    return "[[think about it]]" + _directive("bash", {"command": "echo made by a tool > made.txt", "description": "make it"})


def _gemini(place: Place) -> Launch:
    folder = place.home / ".gemini"
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text('{"security":{"auth":{"selectedType":"gemini-api-key"}}}')
    env = {"GEMINI_API_KEY": "fake", "GOOGLE_GEMINI_BASE_URL": place.model_url, "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    return Launch([place.installed.command("full", "gemini"), "--acp", "-m", "gemini-2.5-flash"], env)


def _gemini_tool(place: Place) -> str:
    return "[[think about it]]" + _directive(
        "run_shell_command", {"command": "echo made by a tool > made.txt", "description": "make it"}
    )


AGENTS = {
    peer.name: peer
    for peer in (
        Peer("py-echo", "push", _py_agent, lambda _: "tool", plain="hello there", slow="slow 60 50"),
        Peer("ts-echo", "push", _ts_agent, lambda _: "tool", plain="hello there", slow="slow 60 50"),
        Peer("native", "push", _native, _native_tool),
        Peer("deepagents", "push", _deepagents, _deepagents_tool),
        Peer("codex", "push", _codex, _codex_tool),
        Peer("claude", "full", _claude, _claude_tool, mode="default"),
        Peer("opencode", "full", _opencode, _opencode_tool),
        Peer("gemini", "full", _gemini, _gemini_tool, authenticate="gemini-api-key"),
    )
}


def client(name: str, installed: Installed) -> Launch:
    """How one of our two driven clients is started, "python" or "typescript"."""
    push = installed.groups["push"]
    if name == "python":
        return Launch([str(push.python), str(HERE / "clients" / "py_client.py")])
    modules = {"PEER_MODULES": str(push.modules)}
    return Launch([str(installed.node_bin / "node"), str(HERE / "clients" / "ts_client.mjs")], modules)

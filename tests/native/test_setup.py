"""`acpd-agent --setup`: what it asks, tries, writes and says."""

from __future__ import annotations

import gc
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from acpd.config import Config, Paths
from acpd.errors import ConfigError
from acpd.native import keys, setup
from acpd.native.setup import LISTED, Terminal
from tests.support.client import Client
from tests.support.commands import acpd
from tests.support.models import ModelServer, http, model_server

KEY = "sk-canary-4711"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"ACPD_HOME": str(tmp_path), "PATH": os.defpath, "OLLAMA_HOST": "127.0.0.1:1"}


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    """A connection that is thrown away open is told then, which is an error: of this test, not of a later one."""
    yield
    gc.collect()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> Callable[..., int]:
    def call(*argv: str, stdin: str = "") -> int:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        return setup.main(["--setup", *argv], env)

    return call


def written(env: dict[str, str]) -> str:
    file = Path(env["ACPD_HOME"], "config", "acpd.toml")
    return file.read_text() if file.exists() else ""


def test_by_arguments_and_a_key_on_stdin(
    run: Callable[..., int], env: dict[str, str], server: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is asked with the key; then the table is written, and the key into a file of 0600 and nowhere else."""
    url = f"{server.url}/v1"
    assert 0 == run("--model", "openai:fake-model", "--base-url", url, "--key-stdin", stdin=KEY + "\n")
    assert f"Bearer {KEY}" == server.headers[0]["authorization"]
    table = f'[agents.native]\nmodel = "openai:fake-model"\nbase_url = "{url}"\napi_key_env = "MODEL_API_KEY"\n'
    assert table == written(env)
    assert {"MODEL_API_KEY": KEY} == keys.stored(env)
    assert 0o600 == Path(keys.path(env)).stat().st_mode & 0o777
    assert "native" == Config.load(Paths.find(env), env).choose().name
    said = capsys.readouterr()
    assert "It answers." in said.out
    assert "`acpd` serves it from now on." in said.out
    assert KEY not in said.out + said.err


@pytest.mark.parametrize(
    "provider", ["openai", *(pytest.param(name, marks=pytest.mark.e2e) for name in ("anthropic", "google"))]
)
def test_every_dialect(run: Callable[..., int], env: dict[str, str], server: ModelServer, provider: str) -> None:
    """The key of a variable that was named is tried and not written; the table says its name."""
    env["MINE"] = KEY
    url = f"{server.url}/v1" if provider == "openai" else server.url
    assert 0 == run("--model", f"{provider}:fake-model", "--base-url", url, "--key-env", "MINE")
    assert KEY in str(server.headers[0])
    assert 'api_key_env = "MINE"\n' in written(env)
    assert not Path(keys.path(env)).exists()


def test_a_usual_variable_is_not_written(run: Callable[..., int], env: dict[str, str], server: ModelServer) -> None:
    """A provider's own variable needs no api_key_env, and the rest of the file stays as it was."""
    file = Path(env["ACPD_HOME"], "config", "acpd.toml")
    file.parent.mkdir()
    file.write_text(
        "# mine\n[log]\nlevel = 'debug' # loud\n[agents.native]\nmodel = \"no:b\"\nbase_url = \"http://old\"\nmode = 'plan'\n"
    )
    file.chmod(0o640)
    env |= {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{server.url}/v1"}
    assert 0 == run("--model", "openai:fake-model")
    assert "# mine\n[log]\nlevel = 'debug' # loud\n[agents.native]\nmodel = \"openai:fake-model\"\nmode = 'plan'\n" == written(
        env
    )
    assert 0o640 == file.stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http(401, {"error": {"message": f"bad key {KEY}"}}), "/v1 did not accept the key (HTTP 401)."),
        (http(404, {"error": {"message": "no"}}), "(HTTP 404), or its address is wrong. It said: no. It lists: fake-model."),
        (http(400, {"error": {"message": f"what is {KEY}"}}), "/v1 rejected the request (HTTP 400). It said: what is ***"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[]", "/v1 gave an answer that cannot be read."),
        (b"HTTP/1.1 302 X\r\nContent-Length: 0\r\n\r\n", "/v1 gave an answer that cannot be read (HTTP 302)."),
        (http(429, {"error": {"message": "slowly"}}), "/v1 takes no more requests at the moment (HTTP 429). It said: slowly"),
    ],
)
def test_what_does_not_work_is_not_written(
    run: Callable[..., int],
    env: dict[str, str],
    server: ModelServer,
    capsys: pytest.CaptureFixture[str],
    answer: bytes,
    said: str,
) -> None:
    """Whether it is the key, the name, the address or something else is said without the key; nothing is written."""
    server.canned = [answer] * 5
    assert 1 == run("--model", "openai:fake-model", "--base-url", f"{server.url}/v1", "--key-stdin", stdin=KEY)
    told = capsys.readouterr()
    assert said in told.out
    assert "nothing was written" in told.err
    assert KEY not in told.out + told.err
    assert not Path(env["ACPD_HOME"], "config").exists()


def test_untested_writes_without_asking_anybody(
    run: Callable[..., int], env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """--untested is for machines that cannot reach the model now. A variable that wins over what was written is named."""
    env["ACPD_AGENTS_NATIVE_MODEL"] = "openai:other"
    assert 0 == run("--model", "openai:m", "--base-url", "http://127.0.0.1:1/v1", "--untested")
    assert '[agents.native]\nmodel = "openai:m"\nbase_url = "http://127.0.0.1:1/v1"\n' == written(env)
    assert "But ACPD_AGENTS_NATIVE_MODEL is set, and wins over the file" in capsys.readouterr().out


def test_a_key_is_not_added_to_a_file_that_others_read(run: Callable[..., int], env: dict[str, str]) -> None:
    """The file of keys is refused as it is when it is read, and the table is not written either."""
    file = Path(keys.path(env))
    file.parent.mkdir()
    file.touch(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        run("--model", "openai:m", "--key-stdin", "--untested", stdin=KEY)
    assert ("", "") == (written(env), file.read_text())


@pytest.mark.parametrize("stdin", ["", "\n", "a b\n", "k\u00e9y\n"])
def test_what_is_no_key(run: Callable[..., int], env: dict[str, str], stdin: str) -> None:
    """A first line of stdin that cannot be sent in a header is an error that does not repeat it."""
    with pytest.raises(ConfigError) as caught:
        run("--model", "openai:m", "--key-stdin", stdin=stdin)
    assert "the first line of stdin is no key" in str(caught.value)
    assert "" == written(env)


def test_a_missing_key_is_said(run: Callable[..., int], env: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A provider without a key is not asked; the variable is named."""
    assert 1 == run("--model", "anthropic:claude")
    assert "ANTHROPIC_API_KEY is not set" in capsys.readouterr().out
    assert "" == written(env)


def test_a_provider_that_is_none(run: Callable[..., int], env: dict[str, str]) -> None:
    """It is an error of the arguments that lists the providers, and nothing is written."""
    with pytest.raises(ConfigError, match=r"names a provider 'foo', which there is not .providers: openai, anthropic"):
        run("--model", "foo:bar", "--untested")
    assert "" == written(env)


def test_a_key_of_another_model_stays_and_is_said(
    run: Callable[..., int], env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Who goes from a model with a stored key to one without is told that the key is still there."""
    url = "http://127.0.0.1:1/v1"
    assert 0 == run("--model", "openai:m", "--base-url", url, "--key-stdin", "--untested", stdin=KEY)
    assert "still holds" not in capsys.readouterr().out
    assert 0 == run("--model", "openai:m", "--base-url", url, "--untested")
    assert "keys.toml still holds MODEL_API_KEY, which this model does not need." in capsys.readouterr().out
    assert {"MODEL_API_KEY": KEY} == keys.stored(env)


def test_nobody_at_the_terminal(env: dict[str, str]) -> None:
    """Without arguments and without a terminal it says what scripts have to say, and ends."""
    command = [sys.executable, "-m", "acpd.native.entry", "--setup"]
    ran = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (1, "") == (ran.returncode, ran.stderr)
    assert "acpd-agent --setup --model PROVIDER:MODEL" in ran.stdout


@pytest.mark.parametrize("argv", [[], ["--offline"]])
def test_it_is_a_login_for_clients_with_a_terminal(tmp_path: Path, env: dict[str, str], argv: list[str]) -> None:
    """acpd's own agent offers the setup as a terminal login, with a model or without, and by way of acpd with its variable.

    Who has no model is told about it in the first answer.
    """
    login = {"type": "terminal", "id": "setup", "args": ["--setup"]}
    agent = [sys.executable, "-m", "acpd.native.entry", *argv]
    for command, variables in ((agent, {}), (acpd("run", "--standalone", "--", *agent), {"ACPD_LOGIN": "1"})):
        with Client(command, tmp_path, env=env) as client:
            (method,) = client.initialize(auth={"terminal": True})["authMethods"]
            assert {**login, "env": variables}.items() <= method.items()
            client.prompt(client.new(tmp_path), "hello")
            assert "acpd-agent --setup" in client.text()
        with Client(command, tmp_path, env=env) as client:
            assert [] == client.initialize()["authMethods"]


@pytest.mark.e2e
@pytest.mark.parametrize("behind", [False, True])
def test_what_was_offline_has_the_model_that_was_set_up(
    tmp_path: Path, env: dict[str, str], server: ModelServer, run: Callable[..., int], *, behind: bool
) -> None:
    """The offline agent of bare acpd, alone and behind it: a session that was begun before goes on with the model."""
    command = acpd("--standalone") if behind else [sys.executable, "-m", "acpd.native.entry", "--until-setup"]
    with Client(command, tmp_path, env=env) as client:
        client.initialize()
        session, other = client.new(tmp_path), client.new(tmp_path)
        client.prompt(session, "say hello")
        assert "hello" in client.text(session)
        assert [] == server.bodies
        assert 0 == run("--model", "openai:fake-model", "--base-url", f"{server.url}/v1", "--key-stdin", stdin=KEY)
        later = [client.new(tmp_path) for _ in range(2)]
        for name in (session, other, *later):
            assert "end_turn" == client.prompt(name, "[[say from a model]]")
            assert "from a model" in client.text(name)
        assert 5 == len(server.bodies)
        update = [line.update for line in client.updates("config_option_update", session)][-1]
        assert "openai:fake-model" in str(update)
        for name in (session, *later):
            (offered,) = client.updates("available_commands_update", name)[-1].update["availableCommands"]
            assert "compact" == offered["name"]
    with Client(command, tmp_path, env=env) as client:
        client.initialize()
        assert "end_turn" == client.prompt(client.new(tmp_path), "[[say at once]]")
        assert 6 == len(server.bodies)


class Screen:
    """A program at a terminal of its own: `answer` waits for a question and types."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.execve(command[0], command, env)
        self.seen = ""

    def answer(self, question: str, text: str) -> None:
        while not re.search(question, self.seen):
            part = self._read()
            assert part, f"it has ended, after: {self.seen}"
            self.seen += part
        self.seen = self.seen[re.search(question, self.seen).end() :]  # type: ignore[union-attr]
        os.write(self._fd, text.encode())

    def end(self) -> tuple[int, str]:
        """The exit code, and what was shown since the last question."""
        while data := self._read():
            self.seen += data
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), self.seen

    def _read(self) -> str:
        """Empty at the end. A program that asks for something else than is answered must not be waited for for ever."""
        if not select.select([self._fd], [], [], 60)[0]:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            pytest.fail(f"it waits, after: {self.seen}")
        try:
            return os.read(self._fd, 65536).decode()
        except OSError:  # the terminal's other end is closed
            return ""


@pytest.mark.e2e
def test_asked_at_a_terminal_by_way_of_acpd(env: dict[str, str], server: ModelServer) -> None:
    """acpd's command with the login's arguments and ACPD_LOGIN is the setup: it asks, hides the key, lists models, writes."""
    screen = Screen([sys.executable, "-m", "acpd.cli.entry", "--setup"], {**env, "ACPD_LOGIN": "1"})
    screen.answer(r"8  another server.*\n.*Which one \[1\]: ", "x\n")
    screen.answer("A number from 1 to 8, please.\r\nWhich one", "8\n")
    screen.answer("Its address", "localhost\n")
    screen.answer("must be a URL.*\n.*Its address", f"{server.url}/v1\n")
    screen.answer("Its key, not shown", KEY + "\n")
    screen.answer(r"1  fake-model\r\nModel \[1\]: ", "\n")
    code, seen = screen.end()
    assert 0 == code, seen
    assert "It answers." in seen
    assert KEY not in seen
    assert 'model = "openai:fake-model"\n' in written(env)
    assert {"MODEL_API_KEY": KEY} == keys.stored(env)


def test_the_key_may_be_set_later(env: dict[str, str]) -> None:
    """Enter where a provider's key is asked for means that its variable will be set: written, and said to be untested."""
    screen = Screen([sys.executable, "-m", "acpd.native.entry", "--setup"], env)
    screen.answer("Which one", "1\n")
    screen.answer("empty: I will set ANTHROPIC_API_KEY", "\n")
    screen.answer("Model", "\n")
    code, seen = screen.end()
    assert 0 == code, seen
    assert "was not tried: ANTHROPIC_API_KEY is not set yet" in seen
    assert "must be set where the editor starts the agent" in seen
    assert 'model = "anthropic:' in written(env)


def test_a_model_may_be_named_that_is_not_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By its number or by any name; of very many the first are shown, and how many there are besides. A blank is none."""
    many = [f"m{number}" for number in range(LISTED + 3)]
    cases = [
        (["a", "b"], "2\n", "b"),
        (["a"], "other\n", "other"),
        (many, f"99\n{many[-1]}\n", many[-1]),
        ([], "\na b\nx:1\n", "x:1"),
    ]
    for offered, typed, expected in cases:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        assert expected == Terminal().name("Model", offered)
    shown = capsys.readouterr().out
    assert (
        f"  {LISTED}  m{LISTED - 1}\n  and 3 more, by their names\nModel [1]: A number from 1 to {LISTED}, or a name, please.\n"
        in shown
    )
    assert "Model: A name, please.\nModel: A name, please.\n" in shown


@pytest.mark.e2e
def test_a_failure_may_be_written_all_the_same(env: dict[str, str]) -> None:
    """At a terminal what does not work is asked about; the answer that writes nothing is the usual one, and so is Ctrl-C."""
    command = [sys.executable, "-m", "acpd.native.entry", "--setup"]
    for end, code in (("\n", 1), ("\x03", 130), ("yes\n", 0)):
        assert "" == written(env)
        screen = Screen(command, env)
        screen.answer("Which one", "7\n")
        screen.answer(r"Model \[qwen3\]: ", "\n")
        screen.answer("http://127.0.0.1:1/v1 cannot be reached.*\n.*Write it all the same", end)
        assert code == screen.end()[0]
    assert '[agents.native]\nmodel = "ollama:qwen3"\n' == written(env)

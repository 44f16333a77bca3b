"""The command as a process: exit codes, where it writes, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from acpd.cli import arguments, serve
from acpd.config import NO_FLAGS, AgentChoice
from acpd.errors import AgentNotFound
from tests.cli import acpd


def test_version(tmp_path: Path) -> None:
    """--version says the version and nothing else."""
    code, out, err = acpd.run(tmp_path, "--version")
    assert (0, "") == (code, err)
    assert out.startswith("acpd 0.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "--standalone"), "unrecognized arguments: --standalone"),
        (("--standalone", "status"), "acpd status is about the daemon, and cannot be standalone (leave that away)"),
        (("lss",), "invalid choice: 'lss'"),
        (("ls", "--al"), "unrecognized arguments: --al"),
        (("ls", "--limit", "-1"), "--limit: "),
        (("ls", "--limit", "many"), "'many' is not a number from 0 on"),
        (("show",), "the following arguments are required: ID"),
        (("ls", "--", "x"), "only 'acpd run' takes a command after --"),
        (("run",), "acpd run has no command (acpd run -- COMMAND ARG...)"),
        (("run", "--name", "x", "--"), "acpd run has no command"),
        (("run", "agent", "--acp"), "acpd run does not know --acp (put -- before the agent: acpd run -- COMMAND ARG...)"),
        (("--sync", "often", "ls"), """--sync: storage.sync is 'often', must be "power" or "process\""""),
        (("ls", "--config", "/none/acpd.toml"), "--config names /none/acpd.toml, which does not exist"),
        (("--agent", "none"), "there is no agent named 'none' (configured: native, offline)"),
        (("ls", "--backend", "paper"), "unknown storage backend 'paper'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """A wrong command line or configuration: exit code 2, nothing on stdout, one line on stderr that names it."""
    (tmp_path / "data").mkdir()
    code, out, err = acpd.run(tmp_path, *words)
    assert (2, "") == (code, out)
    assert said in err
    assert err.startswith("acpd: ")
    assert 1 == err.count("\n")


@pytest.mark.parametrize(
    ("closed", "words", "ended"),
    [
        (">&-", (), (2, "", "acpd: stdout is closed\n")),
        (">&-", ("run", "--", "cat"), (2, "", "acpd: stdout is closed\n")),
        (">&-", ("ls",), (2, "", "acpd: stdout is closed\n")),
        ("<&- >&- 2>&-", ("ls",), (2, "", "")),
        ("<&-", (), (0, "", "")),
        ("<&- 2>&-", (), (0, "", "")),
        ("2>&-", ("show",), (2, "", "")),
        ("2>&-", ("show", "none"), (1, "", "")),
    ],
)
def test_closed_descriptors(tmp_path: Path, closed: str, words: tuple[str, ...], ended: tuple[int, str, str]) -> None:
    """Started without stdin, stdout or stderr: no other file takes its number; without stdout nothing can be done."""
    assert ended == acpd.run(tmp_path, *words, closed=closed)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_an_agent_gets_what_was_closed_as_empty(tmp_path: Path, closed: str) -> None:
    """The program that acpd becomes has all three descriptors."""
    words = ("run", "--", "sh", "-c", ": <&0 >&1 && : >&2")
    assert (0, "", "") == acpd.run(tmp_path, *words, env={"ACPD_LOGIN": "1"}, closed=closed)


def test_flags_stand_before_or_after_the_command(tmp_path: Path) -> None:
    """A flag that is not special to a command may stand on either side of it."""
    before = acpd.run(tmp_path, "--storage", "/x", "paths", "--json")
    after = acpd.run(tmp_path, "paths", "--json", "--storage", "/x")
    assert before == after
    assert "/x" == json.loads(before.out)["storage"]


@pytest.mark.parametrize("words", [("ls",), ("show", "x"), ("tree", "x"), ("logs", "x")])
def test_a_store_that_is_a_file(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Not an empty store, but an error that names the path and the setting, and the file is left as it was."""
    store = tmp_path / "file"
    store.write_text("mine")
    code, out, err = acpd.run(tmp_path, *words, "--storage", str(store))
    assert (1, "") == (code, out)
    assert f"{store}: it is no folder" in err
    assert "--storage" in err
    assert "mine" == store.read_text()


def test_a_terminal_gets_help(tmp_path: Path) -> None:
    """`acpd` alone on a terminal explains itself instead of waiting for a protocol."""
    code, out, _ = acpd.on_terminal(tmp_path)
    assert 0 == code
    assert "acpd run -- COMMAND ARG..." in out
    assert "Exit codes: 0 done" in out
    assert [] == list(tmp_path.iterdir())


def test_run_on_a_terminal_is_the_agent_itself(tmp_path: Path) -> None:
    """On a terminal `acpd run -- CMD ARGS` becomes CMD, so that the agent's own login works."""
    code, out, _ = acpd.on_terminal(
        tmp_path, "run", "--name", "x", "--", "sh", "-c", 'test -t 0 && echo "tty $0 $@"; exit 3', "a", "--b"
    )
    assert (3, "tty a --b\n") == (code, out)
    assert [] == list(tmp_path.iterdir())


def test_login_is_the_agent_itself(tmp_path: Path) -> None:
    """With ACPD_LOGIN=1 the same happens without a terminal, and the agent does not see the variable."""
    words = ("run", "--", "sh", "-c", 'echo "${ACPD_LOGIN-unset} $@"', "sh", "--login")
    assert (0, "unset --login\n", "") == acpd.run(tmp_path, *words, env={"ACPD_LOGIN": "1"})


def test_login_of_a_configured_agent(tmp_path: Path) -> None:
    """With ACPD_LOGIN=1 `acpd --agent NAME ARGS` is NAME's command with its env and these arguments."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "acpd.toml").write_text(
        '[agents.a]\ncommand = ["sh", "-c", "echo $WHO $@", "sh"]\nenv = { WHO = "me" }\n[agents.b]\ncommand = ["false"]\n'
    )
    ran = acpd.run(tmp_path, "--agent", "a", "auth", "login", "--fast", env={"ACPD_LOGIN": "1"})
    assert (0, "me auth login --fast\n", "") == ran


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """An agent's program that is not found says which PATH was searched."""
    code, out, err = acpd.run(tmp_path, "run", "--", "no-such-agent", env={"ACPD_LOGIN": "1", "PATH": "/nowhere"})
    assert (1, "") == (code, out)
    assert "acpd: agent command not found: no-such-agent (PATH searched: /nowhere; install it, or give its whole path)\n" == err


def test_a_program_that_cannot_start(tmp_path: Path) -> None:
    """A program without a usable first line, and a folder that is gone, are said as such."""
    broken = tmp_path / "agent"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(AgentNotFound, match=f"cannot start {broken}: No such file or directory"):
        serve.become(AgentChoice("a", (str(broken),)), {"PATH": ""}, ())
    with pytest.raises(AgentNotFound, match="cannot start /no/folder: No such file"):
        serve.become(AgentChoice("a", (sys.executable,), {}, "/no/folder"), {"PATH": ""}, ())


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    """`acpd ... | head` ends without a word and without failing."""
    command = [*acpd.ACPD, "config"]
    environment = acpd.environment(tmp_path)
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (b"", 0) == (process.stderr.read(), process.wait(60))


def test_a_full_disk_behind_stdout(tmp_path: Path) -> None:
    """Output that cannot be written is an error, not a traceback and not a success."""
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [*acpd.ACPD, "config"],
            env=acpd.environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert (1, b"acpd: stdout: No space left on device\n") == (ran.returncode, ran.stderr)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    """In a folder that was deleted, what needs no folder works, and the rest says what is gone."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'rmdir "$1"; shift; "$@" paths >/dev/null && "$@" ls'
    ran = subprocess.run(
        ["sh", "-c", script, "sh", str(gone), *acpd.ACPD],
        cwd=gone,
        env=acpd.environment(tmp_path),
        capture_output=True,
        timeout=60,
    )
    assert (1, b"acpd: the current folder: No such file or directory\n") == (ran.returncode, ran.stderr)


def test_python_m_in_a_project_is_refused(tmp_path: Path) -> None:
    """`python -m acpd` would run the current folder's modules, so it does not run; with -P it does."""
    (tmp_path / "msgspec.py").write_text('print("hijacked")\n')
    environment = acpd.environment(tmp_path)
    plain, safe = (
        subprocess.run(
            [sys.executable, *flags, "-m", "acpd", "paths"], cwd=tmp_path, env=environment, capture_output=True, timeout=60
        )
        for flags in ([], ["-P"])
    )
    assert (2, b"", True) == (plain.returncode, plain.stdout, plain.stderr.startswith(b"acpd: python -m acpd would load"))
    assert (0, b"") == (safe.returncode, safe.stderr)


def test_paths(tmp_path: Path) -> None:
    """`acpd paths` says where each thing is, makes nothing, and --json has the same."""
    code, out, err = acpd.run(tmp_path, "paths")
    assert (0, "") == (code, err)
    assert {
        "config": str(tmp_path / "config" / "acpd.toml"),
        "storage": str(tmp_path / "data"),
        "data": str(tmp_path / "data"),
        "runtime": str(tmp_path / "run"),
        "socket": str(tmp_path / "run" / "acpd.sock"),
        "log": str(tmp_path / "data" / "logs" / "acpd.log"),
    } == json.loads(acpd.run(tmp_path, "paths", "--json").out)
    assert 6 == out.count("(not there yet)")
    chosen = json.loads(acpd.run(tmp_path, "paths", "--storage", "/x", "--json").out)
    assert (str(tmp_path / "run"), False) == (str(Path(chosen["socket"]).parent), chosen["socket"].endswith("acpd.sock"))
    assert [] == list(tmp_path.iterdir())


def test_config_hides_secrets(tmp_path: Path) -> None:
    """`acpd config` names every value's source, and shows no value of an agent's env or secret argument."""
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "acpd.toml"
    file.write_text('[agents.a]\ncommand = ["a", "--api-key", "hunter2"]\nenv = { KEY = "hunter3" }\n')
    plain, value = (
        acpd.run(tmp_path, *words, env={"ACPD_STORAGE_SYNC": "process"}) for words in (["config"], ["config", "--json"])
    )
    assert (0, 0) == (plain.code, value.code)
    assert "hunter" not in plain.out + value.out
    values = json.loads(value.out)
    assert {"value": "process", "source": "ACPD_STORAGE_SYNC"} == values["storage.sync"]
    assert {"value": ["a", "--api-key", "***"], "source": str(file)} == values["agents.a.command"]
    assert {"value": {"KEY": "***"}, "source": str(file)} == values["agents.a.env"]
    assert {"value": True, "source": "default"} == values["agents.native.memory"]


def test_every_command_has_help() -> None:
    """Every command is in the help, with a sentence."""
    text = arguments.parser().format_help()
    for command in ("run", "ls", "show", "tree", "paths", "logs", "config"):
        assert f"\n    {command} " in text


def test_no_flags_are_no_flags() -> None:
    """An empty command line says nothing, so that the file and the environment count."""
    assert NO_FLAGS == arguments.flags_of(arguments.parser().parse_args([]))

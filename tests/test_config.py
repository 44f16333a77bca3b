"""The configuration: what wins, what is refused and how it is said, where the folders are."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from acpd import config as module
from acpd import ownagent
from acpd.config import Agent, AgentChoice, Config, Flags, Paths, built_in_command, variable, without_secrets
from acpd.errors import ConfigError
from tests.support.paths import ROOT

SHIPPED = ROOT / "config" / "acpd.toml"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.find({"ACPD_HOME": str(tmp_path)})


def write(paths: Paths, text: str) -> str:
    os.makedirs(paths.config, exist_ok=True)
    Path(paths.config_file).write_text(text)
    return paths.config_file


def refused(paths: Paths, env: dict[str, str] | None = None, flags: Flags = module.NO_FLAGS) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.load(paths, env or {}, flags)
    return str(caught.value)


# -- what wins


def test_nothing_said_is_the_defaults(paths: Paths) -> None:
    """Without a file, variables and flags every key has its default, and the store is the data folder."""
    config = Config.load(paths, {})
    assert paths.data == config.storage.path
    assert ("workspace", "power", 32, "info") == (
        config.storage.backend,
        config.storage.sync,
        config.sessions.queue,
        config.log.level,
    )
    assert {"default"} == set(config.sources.values())
    assert "" == config.file


def test_file_then_environment_then_flags(paths: Paths) -> None:
    """A variable wins over the file, a flag over the variable, and each value knows where it came from."""
    file = write(paths, '[storage]\nbackend = "json"\nsync = "process"\n[sessions]\nqueue = 3\n')
    env = {"ACPD_STORAGE_BACKEND": "sqlite", "ACPD_STORAGE_SYNC": "power", "ACPD_LOG_LEVEL": "debug"}
    config = Config.load(paths, env, Flags(sync="process"))
    assert ("sqlite", "process", 3, "debug") == (
        config.storage.backend,
        config.storage.sync,
        config.sessions.queue,
        config.log.level,
    )
    assert [file, "ACPD_STORAGE_BACKEND", "--sync", "ACPD_LOG_LEVEL"] == [
        config.sources[key] for key in ("sessions.queue", "storage.backend", "storage.sync", "log.level")
    ]


@pytest.mark.parametrize("key", module.WANTED)
def test_every_key_has_a_variable(paths: Paths, key: str) -> None:
    """The variable of a key is ACPD_, its section and its name, and gives the same value as the file."""
    values = {"storage.sync": "process", "log.level": "error", "storage.backend": "json", "agents.default": "offline"}
    values |= {"sessions.on_disconnect": "cancel", "daemon.autostart": "false", "sessions.tools": "true"}
    value = values.get(key, "/there" if key in {"storage.path", "log.file"} else "7000")
    section, name = key.split(".")
    got = getattr(getattr(Config.load(paths, {variable(key): value}), section), name)
    write(paths, f"[{section}]\n{name} = {value if value in {'7000', 'false', 'true'} else repr(value)}\n")
    assert got == getattr(getattr(Config.load(paths, {}), section), name)
    assert got != getattr(getattr(Config(), section), name)


def test_empty_variables_say_nothing(paths: Paths) -> None:
    """A variable that is set to nothing counts as not set."""
    config = Config.load(paths, {"ACPD_STORAGE_SYNC": "", "ACPD_USER": "", "ACPD_STANDALONE": "", "ACPD_CONFIG": ""})
    assert ("power", None, False) == (config.storage.sync, config.user, config.standalone)


def test_user_and_standalone(paths: Paths) -> None:
    """--user and --standalone win over ACPD_USER and ACPD_STANDALONE."""
    env = {"ACPD_USER": "alice", "ACPD_STANDALONE": "0"}
    assert ("alice", False) == (Config.load(paths, env).user, Config.load(paths, env).standalone)
    config = Config.load(paths, env, Flags(user="bob", standalone=True))
    assert ("bob", True, "--user") == (config.user, config.standalone, config.sources["user"])
    assert Config.load(paths, {"ACPD_STANDALONE": "1"}).standalone


def test_the_named_file_is_read(paths: Paths, tmp_path: Path) -> None:
    """--config and ACPD_CONFIG name the file that is read instead of the usual one."""
    write(paths, "[sessions]\nqueue = 1\n")
    other = tmp_path / "other.toml"
    other.write_text("[sessions]\nqueue = 2\n")
    assert 1 == Config.load(paths, {}).sessions.queue
    assert 2 == Config.load(paths, {"ACPD_CONFIG": str(other)}).sessions.queue
    assert 2 == Config.load(paths, {}, Flags(config=str(other))).sessions.queue


def test_relative_folders_are_relative_to_the_file(paths: Paths) -> None:
    """A relative path in the file is relative to the file's folder, one of a flag to the current folder."""
    write(paths, '[storage]\npath = "store"\n[agents.a]\ncommand = ["a"]\ncwd = "work"\n')
    config = Config.load(paths, {})
    assert os.path.join(paths.config, "store") == config.storage.path
    assert os.path.join(paths.config, "work") == config.agents.programs["a"].cwd
    assert os.path.join(os.getcwd(), "store") == Config.load(paths, {}, Flags(storage="store")).storage.path


# -- what is refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[storage]\n\nsync = "never"\n', """line 3: storage.sync is 'never', must be "power" or "process\""""),
        ("[storage]\nbackend = 3\n", "line 2: storage.backend is 3, must be the name of a backend"),
        ('[storage]\npath = ""\n', "line 2: storage.path is '', must be the path of a folder"),
        ("[agents]\nstart_timeout = 0\n", "line 2: agents.start_timeout is 0, must be seconds, more than 0"),
        ("[agents]\nstop_grace = inf\n", "line 2: agents.stop_grace is inf, must be seconds"),
        ("[sessions]\nqueue = -1\n", "line 2: sessions.queue is -1, must be a whole number from 0 to 10000"),
        ("[sessions]\nqueue = 1.5\n", "line 2: sessions.queue is 1.5, must be a whole number"),
        ('[log]\nlevel = "loud"\n', """line 2: log.level is 'loud', must be "debug\""""),
        ('[storage]\n"synk" = 1\n', "line 2: there is no synk in [storage] (did you mean sync?)"),
        ("[log]\nfolder = 1\n", "line 2: there is no folder in [log]"),
        ("[log]\nxyz = 1\n", "line 2: there is no xyz in [log] (known: level, file, size, keep)"),
        ("[storag]\nx = 1\n", "line 1: there is no [storag] (did you mean storage?)"),
        ("storage = 1\n", "storage must be a table (write [storage] on a line of its own)"),
        ("[agents.a]\nenv = {}\n", "line 1: [agents.a] has no command"),
        ('[agents.a]\ncommand = "npx a"\n', "line 2: agents.a.command must be a list of texts"),
        ("[agents.a]\ncommand = []\n", "line 2: agents.a.command must be a list of texts"),
        ('[agents.a]\ncommand = [""]\n', "line 2: agents.a.command must be a list of texts"),
        ('[storage]\npath = "/tmp/\\u0000"\n', r"line 2: storage.path is '/tmp/\x00', must be the path of a folder"),
        ('[agents.a]\ncommand = ["a", "\\u0000"]\n', "line 2: agents.a.command must be a list of texts without NUL"),
        ('[agents.a]\ncommand = ["a"]\ncwd = "/\\u0000"\n', "line 3: agents.a.cwd must be the path of a folder"),
        ('[agents.a]\ncommand = ["a"]\nenv = { A = "\\u0000" }\n', "line 3: agents.a.env must be a table of texts without NUL"),
        ('[agents.a]\ncommand = ["a"]\nenv = { "A\\u0000" = "" }\n', "line 3: agents.a.env must be a table of texts"),
        ('[agents.a]\ncommand = ["a"]\nenv = { "A=B" = "" }\n', "line 3: agents.a.env must be a table of texts"),
        ('[agents.a]\ncommand = ["a"]\nenv = { "" = "" }\n', "line 3: agents.a.env must be a table of texts"),
        ('[agents.a]\ncommand = ["a"]\nenvs = {}\n', "line 3: there is no envs in [agents.a] (did you mean env?)"),
        ('[agents]\ndefault = "x"\n', "agents.default: there is no agent named 'x'"),
        ("[agents.default]\n", "line 1: agents.default must be the name of an agent"),
        ('[agents.native]\nmodel = "gpt-5"\n', "line 2: agents.native.model is 'gpt-5', must be PROVIDER:MODEL"),
        ('[agents.native]\nmodel = "foo:bar"\n', "line 2: agents.native.model names a provider 'foo', which there is not"),
        ('[agents.native]\nmodels = "x:y"\n', "line 2: there is no models in [agents.native] (did you mean model?)"),
        ('[agents.native]\ncommand = ["x"]\n', "line 2: there is no command in [agents.native] (this is acpd's own agent"),
        ('[agents.native]\nmode = "yolo"\n', """line 2: agents.native.mode is 'yolo', must be "ask", "code" or "plan\""""),
        ("[agents.native]\nmax_requests = 0\n", "line 2: agents.native.max_requests is 0, must be a whole number from 1"),
        ("[agents]\nnative = 1\n", "line 2: there is no native in [agents]"),
        ("[storage\n", "is not TOML: "),
        ("[log]\n[log]\n", "is not TOML: "),
        ("x=" + "[" * 5000, "is not TOML: nested too deeply"),
        ("x=" + "9" * 5000, "is not TOML: Exceeds the limit"),
    ],
)
def test_what_the_file_must_not_say(paths: Paths, text: str, said: str) -> None:
    """A wrong section, key or value names the file, its line, the key, and what is allowed."""
    file = write(paths, text)
    message = refused(paths)
    assert message.startswith(file)
    assert said in message


def test_secrets_stand_in_no_error(paths: Paths) -> None:
    """What stands in an agent's env is not repeated, right or wrong."""
    write(paths, '[agents.a]\ncommand = ["a"]\nenv = "hunter2"\n')
    assert "hunter2" not in refused(paths)
    for key, value in (
        ("api_key_env", "sk-hunter2"),
        ("base_url", "https://me:hunter2@x/v1"),
        ("base_url", "https://x?k=hunter2"),
    ):
        write(paths, f'[agents.native]\n{key} = "{value}"\n')
        assert "hunter2" not in refused(paths)


def test_files_that_cannot_be_read(paths: Paths, tmp_path: Path) -> None:
    """A file that was named must exist; one that is no file or no UTF-8 says so."""
    assert f"--config names {tmp_path / 'none'}, which does not exist" in refused(
        paths, {}, Flags(config=str(tmp_path / "none"))
    )
    assert "ACPD_CONFIG names" in refused(paths, {"ACPD_CONFIG": str(tmp_path / "none")})
    assert f"cannot read {tmp_path}: Is a directory" in refused(paths, {}, Flags(config=str(tmp_path)))
    (tmp_path / "latin").write_bytes(b"# caf\xe9\n")
    assert "latin is not UTF-8 at byte 5" in refused(paths, {}, Flags(config=str(tmp_path / "latin")))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ACPD_STORAGE_SYNC", "no", """ACPD_STORAGE_SYNC: storage.sync is 'no', must be "power" or "process\""""),
        ("ACPD_AGENTS_START_TIMEOUT", "soon", "ACPD_AGENTS_START_TIMEOUT: agents.start_timeout is 'soon', must be seconds"),
        ("ACPD_AGENTS_START_TIMEOUT", "nan", "must be seconds"),
        ("ACPD_SESSIONS_QUEUE", "1e9", "must be a whole number from 0 to 10000"),
        ("ACPD_STORAGE_BACKED", "json", "there is no variable ACPD_STORAGE_BACKED (did you mean ACPD_STORAGE_BACKEND?)"),
        (
            "ACPD_AGENTS_DEFAULT",
            "ofline",
            "ACPD_AGENTS_DEFAULT: agents.default: there is no agent named 'ofline' (did you mean offline?)",
        ),
        ("ACPD_STANDALONE", "yes", "ACPD_STANDALONE is 'yes', must be 1 or 0"),
        ("ACPD_LOGIN", "x", "ACPD_LOGIN is 'x', must be 1 or 0"),
    ],
)
def test_what_variables_must_not_say(paths: Paths, name: str, value: str, said: str) -> None:
    """A wrong variable is named with its key and what is allowed; a misspelt one is not passed over."""
    assert said in refused(paths, {name: value})


def test_other_variables_are_not_ours_to_judge(paths: Paths) -> None:
    """Variables that belong to no section are left alone: agents and tests have their own."""
    Config.load(paths, {"ACPD_LINK": "x", "ACPD_LOGIN": "1", "ACPD_SHARED": "/x", "HOME": "/"})


# -- agents


AGENTS = '[agents.one]\ncommand = ["one", "--acp"]\nenv = { A = "b" }\n'


def test_the_built_in_agent_is_the_default(paths: Paths) -> None:
    """With no agent configured it is the offline one until a model is set up, under the name of its program; asked for by its
    name it stays offline.
    """
    assert AgentChoice("acpd-agent", built_in_command("--until-setup")) == Config.load(paths, {}).choose()
    choice = Config.load(paths, {}).choose("offline")
    assert AgentChoice("acpd-agent", built_in_command("--offline")) == choice == Config.load(paths, {}).choose("acpd-agent")
    assert "--offline" == choice.command[-1]


def test_the_built_in_agent_is_beside_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script beside the interpreter, or the interpreter without the current folder in its path."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert (str(tmp_path / "python"), "-P") == built_in_command()[:2]
    script = tmp_path / "acpd-agent"
    script.touch(mode=0o755)
    assert (str(script), "--offline") == built_in_command("--offline")


def test_the_only_agent_is_the_default(paths: Paths) -> None:
    """One configured agent needs no `default`; its env and cwd come with it."""
    write(paths, AGENTS)
    config = Config.load(paths, {})
    assert AgentChoice("one", ("one", "--acp"), {"A": "b"}) == config.choose()
    assert "acpd-agent" == config.choose("offline").name


def test_several_agents_need_a_choice(paths: Paths) -> None:
    """Of several agents none is the default by chance."""
    write(paths, AGENTS + '[agents.two]\ncommand = ["two"]\n')
    with pytest.raises(ConfigError, match=r"no default agent: one, two are configured .*--agent NAME"):
        Config.load(paths, {}).choose()
    assert "two" == Config.load(paths, {"ACPD_AGENTS_DEFAULT": "two"}).choose().name
    assert "one" == Config.load(paths, {"ACPD_AGENTS_DEFAULT": "two"}).choose("one").name


def test_our_own_agent_has_a_table_or_a_variable(paths: Paths) -> None:
    """[agents.native] and its variables, which win, are our own agent's; it is told which file acpd has read, and no secret."""
    file = write(paths, '[agents.native]\nmodel = "openai:gpt-5"\nmode = "plan"\n')
    config = Config.load(paths, {"ACPD_AGENTS_NATIVE_MODE": "code", "ACPD_AGENTS_NATIVE_MAX_REQUESTS": "7"})
    assert ownagent.Native(model="openai:gpt-5", mode="code", max_requests=7) == config.agents.native
    assert (file, "ACPD_AGENTS_NATIVE_MODE", "default") == (
        config.sources["agents.native.model"],
        config.sources["agents.native.mode"],
        config.sources["agents.native.thinking"],
    )
    assert AgentChoice("native", built_in_command("--config", file)) == config.choose("native")
    assert built_in_command() == Config().choose("native").command


def test_our_own_agent_is_the_default_only_alone(paths: Paths) -> None:
    """It comes before the offline agent where something is said of it, and never takes the place of a configured program."""
    assert "native" == Config.load(paths, {"ACPD_AGENTS_NATIVE_MODEL": "ollama:qwen3"}).choose().name
    write(paths, "[agents.native]\n")
    assert "native" == Config.load(paths, {}).choose().name
    write(paths, AGENTS + '[agents.native]\nmodel = "ollama:qwen3"\n')
    assert "one" == Config.load(paths, {}).choose().name
    assert "native" == Config.load(paths, {"ACPD_AGENTS_DEFAULT": "native"}).choose().name


def test_an_agent_may_be_called_offline(paths: Paths) -> None:
    """What the file configures wins over what is built in."""
    write(paths, '[agents.offline]\ncommand = ["mine"]\n')
    assert AgentChoice("offline", ("mine",)) == Config.load(paths, {}).choose("offline")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("a", "--api-key", "k", "--model", "m"), ("a", "--api-key", "***", "--model", "m")),
        (("a", "--TOKEN=t", "x"), ("a", "--TOKEN=***", "x")),
        (("a", "--client-secret", "--token", "x"), ("a", "--client-secret", "***", "x")),
        (("--key",), ("--key",)),
        (("a", "--key-env", "NAME", "--api-key-env=NAME"), ("a", "--key-env", "NAME", "--api-key-env=NAME")),
        (("key", "token=x"), ("key", "token=x")),
        (("env", "API_KEY=x", "HOME=/h", "a"), ("env", "API_KEY=***", "HOME=/h", "a")),
        (("a", "-H", "Authorization: Bearer x", "b: c"), ("a", "-H", "Authorization: ***", "b: c")),
    ],
)
def test_secret_arguments_are_not_shown(command: tuple[str, ...], shown: tuple[str, ...]) -> None:
    """The values of --*key*, --*token*, --*secret*, of variables and headers named so, are neither stored nor shown."""
    assert shown == without_secrets(command)


# -- folders


def test_acpd_home_holds_everything(tmp_path: Path) -> None:
    """ACPD_HOME puts config, data and runtime under one folder and wins over systemd's variables."""
    env = {"ACPD_HOME": str(tmp_path), "STATE_DIRECTORY": "/s", "XDG_DATA_HOME": "/x"}
    assert Paths(*(str(tmp_path / name) for name in ("config", "data", "run"))) == Paths.find(env)


def test_acpd_home_is_absolute() -> None:
    """A relative ACPD_HOME would be another store in every folder."""
    with pytest.raises(ConfigError, match="ACPD_HOME is 'x', must be an absolute path"):
        Paths.find({"ACPD_HOME": "x"})


def test_systemd_names_the_folders() -> None:
    """A unit's folders are used, the first of each where systemd lists several."""
    env = {"CONFIGURATION_DIRECTORY": "/c", "STATE_DIRECTORY": "/s:/t", "RUNTIME_DIRECTORY": "/r"}
    assert Paths("/c", "/s", "/r") == Paths.find({**env, "SYSTEMD_EXEC_PID": str(os.getpid())})


@pytest.mark.parametrize("pid", [{}, {"SYSTEMD_EXEC_PID": "1"}])
def test_folders_of_another_unit_are_not_ours(pid: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a service passes on to the editor that it runs, and that to acpd, is that service's folder."""
    monkeypatch.setenv("XDG_DATA_HOME", "/xd")
    assert "/xd/acpd" == Paths.find({"STATE_DIRECTORY": "/var/lib/emacs", **pid}).data


def test_xdg_names_what_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What neither says is where the XDG base directory specification puts it."""
    run = str(tmp_path)
    xdg = {"XDG_CONFIG_HOME": "/xc", "XDG_DATA_HOME": "/xd", "XDG_STATE_HOME": "/xs", "XDG_RUNTIME_DIR": run}
    for name, value in xdg.items():
        monkeypatch.setenv(name, value)
    assert Paths("/xc/acpd", "/xd/acpd", f"{run}/acpd") == Paths.find(xdg)
    assert "/s" == Paths.find({**xdg, "STATE_DIRECTORY": "/s", "SYSTEMD_EXEC_PID": str(os.getpid())}).data


@pytest.mark.parametrize("given", ["", "relative", "/nowhere-4711", "/proc/1"])
def test_no_runtime_folder_of_others(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a usable XDG_RUNTIME_DIR the runtime folder is below our own, not one in /tmp that anybody may have made."""
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    monkeypatch.setenv("XDG_RUNTIME_DIR", given)
    monkeypatch.setenv("XDG_STATE_HOME", "/xs")
    assert "/xs/acpd/run" == Paths.find({"XDG_RUNTIME_DIR": given}).runtime


# -- the shipped file


def keys_of(text: str) -> dict[str, set[str]]:
    """The keys of each section, those too that are commented out."""
    found: dict[str, set[str]] = {}
    section = ""
    for line in text.split("\n"):
        if head := re.fullmatch(r"(?:# )?\[([a-z.]+)\]", line):
            section = "agents.NAME" if head[1].startswith("agents.") and head[1] != "agents.native" else head[1]
            found[section] = set()
        elif key := re.match(r"(?:# )?([a-z_]+) = ", line):
            found[section].add(key[1])
    return found


def test_the_shipped_file_has_every_key() -> None:
    """config/acpd.toml shows each key of each section, and no other."""
    expected = {name: set(made.__struct_fields__) - {"programs", "native"} for name, made in module.SECTIONS.items()}
    assert {f"{name}.{key}" for name, keys in expected.items() for key in keys} == set(module.WANTED)
    expected["agents.native"] = set(ownagent.WANTED)
    expected["agents.NAME"] = set(Agent.__struct_fields__)
    assert expected == keys_of(SHIPPED.read_text())
    assert set(ownagent.WANTED) == set(ownagent.Native.__struct_fields__)
    assert expected["agents.NAME"] == set(module.WANTED_OF_AGENT)


def test_the_shipped_file_says_the_defaults(paths: Paths) -> None:
    """Loading config/acpd.toml changes nothing."""
    plain = Config.load(paths, {})
    shipped = Config.load(paths, {"ACPD_CONFIG": str(SHIPPED)})
    assert (plain.storage, plain.agents, plain.sessions, plain.daemon, plain.log) == (
        shipped.storage,
        shipped.agents,
        shipped.sessions,
        shipped.daemon,
        shipped.log,
    )


def test_the_shipped_file_loads_with_every_key_live(paths: Paths) -> None:
    """Each key that is commented out is right once its `# ` is removed."""
    live = re.sub(r"(?m)^# (\[agents\.[a-z]+\]|[a-z_]+ = .*)$", r"\1", SHIPPED.read_text())
    config = Config.load(paths, {"ACPD_CONFIG": write(paths, live)})
    assert ["claude"] == list(config.agents.programs)
    assert "claude" == config.choose().name
    assert config.agents.native is not None
    assert "anthropic:" == config.agents.native.model[:10]


def test_variables_and_flags_are_documented() -> None:
    """Every flag that stands for a key is named at that key in config/acpd.toml."""
    text = SHIPPED.read_text()
    assert [] == [flag for flag in (*module.FLAG_NAMES.values(), "--agent") if f"Flag: {flag}." not in text]

"""What acpd is told: defaults < acpd.toml < ACPD_* variables < flags, as frozen values. And where its folders are.

Nothing here is read when the module is imported. Every value knows where it came from (`Config.sources`), so an
error and `acpd config` can say it. Each key of the Structs below stands in config/acpd.toml.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from acpd import configfile, ownagent
from acpd.configfile import NO_NUL, Seconds, listed, meant
from acpd.errors import ConfigError
from acpd.ownagent import NATIVE

FILE_NAME = "acpd.toml"
OFFLINE = "offline"
"""The name under which the built-in agent can be asked for; its sessions belong to `BUILT_IN`."""
BUILT_IN = "acpd-agent"
HIDDEN = "***"
"""Stands for a value that is neither stored nor shown."""

Text = Annotated[str, Meta(min_length=1, pattern=NO_NUL)]
Name = Annotated[str, Meta(pattern=r"\A[^=\0]+\Z")]
Value = Annotated[str, Meta(pattern=NO_NUL)]


class Storage(Struct, frozen=True, kw_only=True):
    """`[storage]`. `path` is always a folder, absolute after `Config.load`."""

    backend: Text = "workspace"
    path: Text = ""
    sync: Literal["power", "process"] = "power"


class Agent(Struct, frozen=True, kw_only=True):
    """`[agents.NAME]`: a program that speaks ACP on stdio. `env` is added to the client's environment."""

    command: Annotated[tuple[Text, ...], Meta(min_length=1)]
    env: dict[Name, Value] = {}
    cwd: Text | None = None


class Agents(Struct, frozen=True, kw_only=True):
    """`[agents]`; times in seconds, tokens as acpd.storage.primer counts them. `programs` are the tables `[agents.NAME]`.

    `native` is None where nothing is said of it.
    """

    default: Text = ""
    start_timeout: Seconds = 30.0
    cancel_timeout: Seconds = 10.0
    stop_grace: Seconds = 1.0
    primer_tokens: Annotated[int, Meta(ge=1_000, le=10_000_000)] = 50_000
    programs: dict[str, Agent] = {}
    native: ownagent.Native | None = None


class Sessions(Struct, frozen=True, kw_only=True):
    """`[sessions]`. `queue`: prompts that may wait behind the running one; `keep_idle` in seconds; `tools`: for every agent."""

    queue: Annotated[int, Meta(ge=0, le=10_000)] = 32
    on_disconnect: Literal["continue", "cancel"] = "continue"
    keep_idle: Annotated[float, Meta(ge=10, le=604_800)] = 600.0
    tools: bool = False


class Daemon(Struct, frozen=True, kw_only=True):
    """`[daemon]`. `autostart`: whether a shim starts one where none runs; `drain`, `idle_exit`: seconds."""

    autostart: bool = True
    connections: Annotated[int, Meta(ge=1, le=100_000)] = 4096
    agents: Annotated[int, Meta(ge=1, le=100_000)] = 2000
    drain: Annotated[float, Meta(ge=0, le=86_400)] = 5.0
    idle_exit: Annotated[float, Meta(ge=0, le=31_536_000)] = 900.0


class Log(Struct, frozen=True, kw_only=True):
    """`[log]`: acpd's own log, never the sessions'. `size` in MiB; `file` "" is one in the data folder."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    file: Value = ""
    size: Annotated[int, Meta(ge=1, le=10_000)] = 10
    keep: Annotated[int, Meta(ge=0, le=10_000)] = 5


class AgentChoice(Struct, frozen=True):
    """The agent of one connection. `name` is the agentId; "" when the program itself is to say it (`acpd run`)."""

    name: str
    command: tuple[str, ...]
    env: dict[str, str] = {}
    cwd: str | None = None


class Flags(Struct, frozen=True, kw_only=True):
    """What the command line says; None: nothing."""

    config: str | None = None
    user: str | None = None
    backend: str | None = None
    storage: str | None = None
    sync: str | None = None
    standalone: bool = False
    log_level: str | None = None


NO_FLAGS = Flags()


class Paths(Struct, frozen=True):
    """The three folders. None of them needs to exist."""

    config: str
    data: str
    runtime: str

    @property
    def config_file(self) -> str:
        return os.path.join(self.config, FILE_NAME)

    @classmethod
    def find(cls, env: Mapping[str, str]) -> Paths:
        """Below ACPD_HOME if that is set; else systemd's variables, and XDG (or macOS's folders) for what they leave open.

        systemd's are those of the service that acpd is: one that some other service inherits to an editor is not ours.
        Raises ConfigError if ACPD_HOME is not absolute: the store would move with the current folder.
        """
        if home := env.get("ACPD_HOME"):
            if not os.path.isabs(home):
                raise ConfigError(f"ACPD_HOME is {home!r}, must be an absolute path", hint="e.g. ACPD_HOME=$HOME/.acpd")
            return cls(*(os.path.join(home, name) for name in ("config", "data", "run")))
        names = ("CONFIGURATION_DIRECTORY", "STATE_DIRECTORY", "RUNTIME_DIRECTORY")
        ours = env.get("SYSTEMD_EXEC_PID") == str(os.getpid())
        given = [env.get(name, "").split(":")[0] if ours else "" for name in names]
        return cls(*given) if all(given) else cls(*(one or other for one, other in zip(given, _xdg(env), strict=True)))


def _xdg(env: Mapping[str, str]) -> tuple[str, str, str]:
    import platformdirs  # 13 ms

    dirs = platformdirs.PlatformDirs("acpd", appauthor=False)
    given = env.get("XDG_RUNTIME_DIR", "")
    # Where there is none platformdirs names a folder in /tmp that somebody else may have made first.
    runtime = os.path.join(given, "acpd") if _is_ours(given) else os.path.join(dirs.user_state_dir, "run")
    return dirs.user_config_dir, dirs.user_data_dir, runtime


def _is_ours(folder: str) -> bool:
    """Not after su or sudo, which may leave the variable of the user before."""
    try:
        return os.path.isabs(folder) and os.stat(folder).st_uid == os.getuid()
    except OSError:
        return False


class Config(Struct, frozen=True, kw_only=True):
    """Everything acpd was told. `user` None: no prefix. `file`: the file that was read, or "".

    `sources` has one text for each key ("storage.sync"): "default", a file, a variable, a flag.
    """

    storage: Storage = Storage()
    agents: Agents = Agents()
    sessions: Sessions = Sessions()
    daemon: Daemon = Daemon()
    log: Log = Log()
    user: str | None = None
    standalone: bool = False
    file: str = ""
    sources: dict[str, str] = {}

    @classmethod
    def load(cls, paths: Paths, env: Mapping[str, str], flags: Flags = NO_FLAGS) -> Config:
        """Raises ConfigError, which names the file and line, the variable or the flag, the key, and what is allowed."""
        given = _Given()
        file = file_to_read(paths, env, flags)
        if file:
            _add_file(given, file)
        _add_environment(given, env)
        _add_flags(given, flags)
        given.values["agents"]["native"] = given.native.native()
        made: dict[str, Any] = {name: made(**given.values[name]) for name, made in SECTIONS.items()}
        storage: Storage = made["storage"]
        if not storage.path:
            made["storage"] = msgspec.structs.replace(storage, path=paths.data)
        config = cls(
            **made, user=given.top.get("user"), standalone="standalone" in given.top, file=file, sources=_all_sources(given)
        )
        _check_default(config)
        return config

    def choose(self, name: str | None = None) -> AgentChoice:
        """The agent of this name, else the configured default, else the only program there is, else our own: with a model if
        `[agents.native]` says something, else offline until it does.

        Raises ConfigError if there is no agent of that name, or several and no default.
        """
        programs = self.agents.programs
        name = name or self.agents.default
        if not name and len(programs) > 1:
            raise ConfigError(
                f"no default agent: {listed(programs)} are configured",
                hint='set [agents] default = "NAME", or pass --agent NAME',
            )
        config = ("--config", self.file) if self.file else ()
        if not name and not programs and self.agents.native is None:
            return AgentChoice(BUILT_IN, built_in_command("--until-setup", *config))
        name = name or next(iter(programs), NATIVE)
        if (agent := programs.get(name)) is not None:
            return AgentChoice(name, agent.command, agent.env, agent.cwd)
        if name == NATIVE:
            return AgentChoice(NATIVE, built_in_command(*config))
        if name in {OFFLINE, BUILT_IN}:
            return AgentChoice(BUILT_IN, built_in_command("--offline"))
        known = [*programs, NATIVE, OFFLINE]
        raise ConfigError(f"there is no agent named {name!r}", hint=meant(name, known, f"configured: {listed(known)}"))


SECTIONS: dict[str, type[Struct]] = {
    "storage": Storage,
    "agents": Agents,
    "sessions": Sessions,
    "daemon": Daemon,
    "log": Log,
}

WANTED = {
    "storage.backend": 'the name of a backend: "workspace", "json" or "sqlite"',
    "storage.path": "the path of a folder",
    "storage.sync": '"power" or "process"',
    "agents.default": "the name of an agent",
    "agents.start_timeout": "seconds, more than 0 and at most 86400",
    "agents.cancel_timeout": "seconds, more than 0 and at most 86400",
    "agents.stop_grace": "seconds, more than 0 and at most 86400",
    "agents.primer_tokens": "a whole number from 1000 to 10000000",
    "sessions.queue": "a whole number from 0 to 10000",
    "sessions.on_disconnect": '"continue" or "cancel"',
    "sessions.keep_idle": "seconds, from 10 to 604800",
    "sessions.tools": "true or false",
    "daemon.autostart": "true or false",
    "daemon.connections": "a whole number from 1 to 100000",
    "daemon.agents": "a whole number from 1 to 100000",
    "daemon.drain": "seconds, from 0 to 86400",
    "daemon.idle_exit": "seconds, from 0 to 31536000",
    "log.level": '"debug", "info", "warning" or "error"',
    "log.file": "the path of a file",
    "log.size": "a whole number of MiB from 1 to 10000",
    "log.keep": "a whole number from 0 to 10000",
}
"""What a key may be, for people. A test holds that it has every key."""

WANTED_OF_AGENT = {
    "command": 'a list of texts without NUL, the program first: ["npx", "some-agent", "--acp"]',
    "env": 'a table of texts without NUL, and no = in a name: { NAME = "value" }',
    "cwd": "the path of a folder",
}

_PATHS = {"storage.path", "log.file"}
"""What is relative in the file is relative to its folder."""

FLAG_NAMES = {"storage.backend": "--backend", "storage.path": "--storage", "storage.sync": "--sync", "log.level": "--log-level"}


def variable(key: str) -> str:
    """The variable of a key: storage.sync is ACPD_STORAGE_SYNC."""
    return "ACPD_" + key.upper().replace(".", "_")


def built_in_command(*arguments: str) -> tuple[str, ...]:
    """How our own agent is started."""
    return _program(BUILT_IN, "acpd.native.entry", arguments)


def tools_command(config: Config) -> tuple[str, ...]:
    """How `acpd mcp` is started on this store, without a session. Nothing of it is secret: agents store it where they like."""
    file = ("--config", config.file) if config.file else ()
    store = ("--backend", config.storage.backend, "--storage", config.storage.path)
    return _program("acpd", "acpd.cli.entry", ("mcp", *file, *store))


def _program(name: str, module: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """A script beside this interpreter.

    Where there is none (installed for one user) the interpreter runs it, with -P: a module in the session's folder
    must not be able to take its place.
    """
    script = os.path.join(os.path.dirname(sys.executable), name)
    if os.access(script, os.X_OK):
        return (script, *arguments)
    return (sys.executable, "-P", "-c", f"from {module} import main; raise SystemExit(main())", *arguments)


def without_secrets(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command as it may be stored and shown: HIDDEN for the values of --*key*, --*token*, --*secret*, --*password*, of
    variables named so (`env API_KEY=...`), and of headers that carry them. What `--key-env` is told is the name of a variable.
    """
    shown: list[str] = []
    hide = False
    for argument in command:
        name, equals, _ = argument.partition("=")
        secret = any(word in name.lower() for word in ("key", "token", "secret", "password")) and not name.endswith("-env")
        flag = name.startswith("-") and secret
        header, colon, _ = argument.partition(":")
        if hide:
            shown.append(HIDDEN)
        elif equals and secret and (flag or (name.isidentifier() and name.isupper())):
            shown.append(f"{name}={HIDDEN}")
        elif colon and header.rpartition("=")[2].lower() in ("authorization", "proxy-authorization", "x-api-key", "cookie"):
            shown.append(f"{header}: {HIDDEN}")
        else:
            shown.append(argument)
        hide = flag and not equals and not hide
    return tuple(shown)


class _Given:
    """What was said so far; later words win."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        self.sources: dict[str, str] = {}
        self.top: dict[str, Any] = {}
        self.native = ownagent.Told(self.sources)

    def put(self, key: str, value: object, source: str, at: str, *, strict: bool, base: str | None = None) -> None:
        """One key. `at` is where an error points; `base` is what a relative path is relative to."""
        section, name = key.split(".", 1)
        self.values[section][name] = configfile.converted(
            SECTIONS[section], name, value, f"{at}: {key}", WANTED[key], strict=strict
        )
        if key in _PATHS and self.values[section][name]:
            self.values[section][name] = _folder(self.values[section][name], base)
        self.sources[key] = source


def _folder(path: str, base: str | None) -> str:
    try:
        return os.path.abspath(os.path.join(base or "", os.path.expanduser(path)))
    except FileNotFoundError:
        raise ConfigError(f"{path} is relative, and the current folder is gone", hint="give an absolute path") from None


# -- the file


def file_to_read(paths: Paths, env: Mapping[str, str], flags: Flags) -> str:
    """The file to read: one that was named must exist, the usual one need not."""
    named = flags.config or env.get("ACPD_CONFIG")
    if not named:
        return paths.config_file if os.path.exists(paths.config_file) else ""
    path = _folder(named, None)
    if not os.path.exists(path):
        who = "--config" if flags.config else "ACPD_CONFIG"
        raise ConfigError(f"{who} names {path}, which does not exist", hint=f"without {who} acpd reads {paths.config_file}")
    return path


def _add_file(given: _Given, path: str) -> None:
    table, source = configfile.parse(path)
    for section, members in table.items():
        if section not in SECTIONS:
            raise ConfigError(f"{source.at(section)}: there is no [{section}]", hint=meant(section, [*SECTIONS]))
        if not isinstance(members, dict):
            raise ConfigError(f"{path}: {section} must be a table", hint=f"write [{section}] on a line of its own")
        for name, value in members.items():
            _add_member(given, source, section, name, value)


def _add_member(given: _Given, source: configfile.Source, section: str, name: str, value: object) -> None:
    key = f"{section}.{name}"
    if key in WANTED:
        given.put(key, value, source.path, source.at(section, name), strict=True, base=os.path.dirname(source.path))
    elif key == f"agents.{NATIVE}" and isinstance(value, dict):
        given.native.add_table(source, value)
    elif section == "agents" and isinstance(value, dict):
        given.values["agents"].setdefault("programs", {})[name] = _agent(given, source, name, value)
    else:
        known = [known.split(".", 1)[1] for known in WANTED if known.startswith(f"{section}.")]
        raise ConfigError(f"{source.at(section, name)}: there is no {name} in [{section}]", hint=meant(name, known))


def _agent(given: _Given, source: configfile.Source, agent: str, members: dict[str, object]) -> Agent:
    section = f"agents.{agent}"
    for name in members:
        if name not in WANTED_OF_AGENT:
            raise ConfigError(
                f"{source.at(section, name)}: there is no {name} in [{section}]", hint=meant(name, [*WANTED_OF_AGENT])
            )
    if "command" not in members:
        raise ConfigError(
            f"{source.at(section)}: [{section}] has no command", hint=f"command = {WANTED_OF_AGENT['command'].split(': ')[1]}"
        )
    values: dict[str, Any] = {}
    for name, value in members.items():
        where = f"{source.at(section, name)}: {section}.{name}"
        values[name] = configfile.converted(
            Agent, name, value, where, WANTED_OF_AGENT[name], strict=True, shown=False, beside={"command": ["-"]}
        )
        given.sources[f"{section}.{name}"] = source.path
    if "cwd" in values:
        values["cwd"] = _folder(values["cwd"], os.path.dirname(source.path))
    return Agent(**values)


# -- variables and flags


def _add_environment(given: _Given, env: Mapping[str, str]) -> None:
    known = {variable(key): key for key in (*WANTED, *ownagent.KEYS)}
    for name, value in env.items():
        if not name.startswith("ACPD_") or not value:
            continue
        key = known.get(name)
        if key in WANTED:
            given.put(key, value, name, name, strict=False)
        elif key is not None:
            given.native.put(key.rpartition(".")[2], value, name, name, strict=False)
        elif name.startswith(tuple(f"ACPD_{section.upper()}_" for section in SECTIONS)):
            raise ConfigError(f"there is no variable {name}", hint=meant(name, [*known]))
    _put_top(given, "user", env.get("ACPD_USER"), "ACPD_USER")
    for name in ("ACPD_STANDALONE", "ACPD_LOGIN"):
        if (value := env.get(name, "")) not in {"", "0", "1"}:
            raise ConfigError(f"{name} is {value!r}, must be 1 or 0")
    _put_top(given, "standalone", env.get("ACPD_STANDALONE") == "1", "ACPD_STANDALONE")


def _add_flags(given: _Given, flags: Flags) -> None:
    said = {
        "storage.backend": flags.backend,
        "storage.path": flags.storage,
        "storage.sync": flags.sync,
        "log.level": flags.log_level,
    }
    for key, value in said.items():
        if value is not None:
            given.put(key, value, FLAG_NAMES[key], FLAG_NAMES[key], strict=False)
    _put_top(given, "user", flags.user, "--user")
    _put_top(given, "standalone", flags.standalone, "--standalone")


def _put_top(given: _Given, name: str, value: object, source: str) -> None:
    if value:
        given.top[name] = value
        given.sources[name] = source


# -- together


def _all_sources(given: _Given) -> dict[str, str]:
    return {**dict.fromkeys((*WANTED, *ownagent.KEYS, "user", "standalone"), "default"), **given.sources}


def _check_default(config: Config) -> None:
    """A default that names no agent is an error now, not when an editor has started us."""
    if config.agents.default:
        try:
            config.choose()
        except ConfigError as error:
            raise ConfigError(f"{config.sources['agents.default']}: agents.default: {error.message}", hint=error.hint) from None

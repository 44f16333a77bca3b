"""`acpd service install|uninstall`: the units of systemd, written, told and started; and taken away again.

What install wrote begins with MARKER. Whatever does not is somebody else's, and neither replaced nor removed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from acpd.cli import reaching
from acpd.cli.call import Call
from acpd.errors import AcpdError, ConfigError
from acpd.stores import resolve
from acpd.where import STORE_WORDS, socket_path

MARKER = "# Written by `acpd service install`; `acpd service uninstall` removes it. Changes belong into a drop-in.\n"
UNITS = ("acpd.service", "acpd.socket")
USER = "acpd"
FLAGS = ("config", "storage", "backend", "sync", "user", "log_level")
"""What may stand before every command, and in no unit."""
HIDDEN_FROM_THE_MACHINES = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108  nothing is put there
"""ProtectHome= and PrivateTmp= of its unit."""
_FILES = "acpd_backends.files:FILES"
_TEMPLATES = Path(__file__).resolve().parent / "units"
"""In a checkout a link to where people look for units; in a wheel the files."""


class Place(NamedTuple):
    """Whose systemd: where its units are, and how it is spoken to."""

    whose: str
    folder: Path
    systemctl: tuple[str, ...]

    @classmethod
    def find(cls, env: Mapping[str, str], *, system: bool) -> Place:
        if system:
            return cls("system", Path("/etc/systemd/system"), ("systemctl",))
        configured = env.get("XDG_CONFIG_HOME", "")
        base = configured if os.path.isabs(configured) else os.path.expanduser("~/.config")
        return cls("user", Path(base) / "systemd" / "user", ("systemctl", "--user"))

    def command(self, *words: str) -> list[str]:
        return [*self.systemctl, *words]


def service(call: Call) -> int:
    """Raises ConfigError for what cannot be installed or is not ours; AcpdError when systemd does not do it."""
    place = Place.find(call.env, system=call.values.system)
    if sys.platform != "linux":
        raise ConfigError("acpd service is for systemd, which this system does not have", hint="run acpd serve")
    work = _install if call.values.action == "install" else _uninstall
    return work(call, place)


# -- install


def units(whose: str, program: str) -> dict[str, str]:
    """From the name of each unit to its text. `program`: the path of acpd. Raises ConfigError for one that no unit may have."""
    if set(program) & {'"', "'", "\\"} or not program.isprintable():
        raise ConfigError(f"systemd cannot start {program!r}: quotes, backslashes", hint="install acpd in another folder")
    path = program.replace("%", "%%")
    shown = path if shlex.quote(path) == path else f'"{path}"'
    return {name: MARKER + (_TEMPLATES / whose / name).read_text(encoding="utf-8").replace("@ACPD@", shown) for name in UNITS}


def _install(call: Call, place: Place) -> int:
    dry = call.values.dry_run
    _only_the_usual_store(call, place)
    program = program_path()
    texts = units(place.whose, program)
    for name in UNITS:
        _ours(place.folder / name, "replace it")
    if place.whose == "system" and not dry:
        visible(program, sys.prefix, sys.base_prefix)
        _user_exists()
    for name, text in texts.items():
        path = place.folder / name
        call.out.say(f"{'would write' if dry else 'write'} {path}")
        if dry:
            call.out.say(textwrap.indent(text, "    ").rstrip("\n"))
        else:
            _changed(path, partial(_write, path, text, place))
    _run(call, place.command("daemon-reload"), place.command("enable", "--now", "acpd.socket"))
    return 0


def _only_the_usual_store(call: Call, place: Place) -> None:
    """Raises ConfigError for words that choose anything else: the unit would not have them, and only editors would obey."""
    flags = reaching.flags(call)
    values = {variable: getattr(flags, name) or call.env.get(variable) for name, variable in STORE_WORDS.items()}
    values["ACPD_HOME"] = call.env.get("ACPD_HOME")
    said = [f"--{name.replace('_', '-')}" for name in FLAGS if getattr(flags, name)]
    if place.whose == "user":  # the machine's has an environment of its own
        said += [variable for variable in values if call.env.get(variable)]
    if not said:
        return
    if place.whose == "system":
        hint = "leave that away; /etc/acpd/acpd.toml says it, and a drop-in lets in other folders: ReadWritePaths="
    else:
        words = " ".join(f"{variable}={value}" for variable, value in values.items() if value)
        socket = socket_path(call.paths.runtime, reaching.choice(call), call.env)
        edit = shlex.join(place.command("edit"))
        hint = f"leave that away; then '{edit} acpd.service': Environment={words}, '{edit} acpd.socket': ListenStream={socket}"
        hint = hint if words else "leave that away; acpd.toml says it (acpd paths)"
    raise ConfigError(f"the units are for the usual store, and cannot have {', '.join(said)}", hint=hint)


def program_path() -> str:
    """The script that was started. Raises ConfigError where there is none: a unit needs a path that stays."""
    path = os.path.abspath(sys.argv[0])
    if os.path.basename(path) == "acpd" and os.access(path, os.X_OK) and os.path.isfile(path):
        return path
    beside = os.path.join(os.path.dirname(sys.executable), "acpd")
    if os.access(beside, os.X_OK):
        return beside
    raise ConfigError("cannot tell where the program acpd is", hint="install it (pipx install ...) and run acpd service there")


def visible(*paths: str) -> None:
    """Raises ConfigError if one of them is where the machine's service cannot see it: in a home, or in /tmp."""
    for path in map(os.path.realpath, paths):
        if path.startswith(HIDDEN_FROM_THE_MACHINES):
            hint = "install it for the machine: with a system Python, in a venv such as /opt/acpd"
            raise ConfigError(f"the machine's service cannot start {path}: it sees no homes and no /tmp", hint=hint)


def _user_exists() -> None:
    import pwd

    try:
        pwd.getpwnam(USER)
    except KeyError:
        made = f"useradd --system --user-group --home-dir /var/lib/{USER} --shell /usr/sbin/nologin {USER}"
        raise ConfigError(f"there is no user {USER}, whose rights the agents would have", hint=made) from None


def _ours(path: Path, what: str) -> bool:
    """Whether it is there. Raises ConfigError if somebody else wrote it."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise AcpdError(f"cannot read {path}: {error.strerror}") from None
    if first != MARKER:
        raise ConfigError(f"{path} was not written by acpd service install", hint=f"move it away; acpd does not {what}")
    return True


def _write(path: Path, text: str, place: Place) -> None:
    files = resolve(_FILES)
    files.make_folders(path.parent, sync=False)
    files.write_atomic(path, text.encode(), sync=True)
    if place.whose == "system":
        path.chmod(0o644)  # systemd complains of units that not everybody can read


def _changed(path: Path, work: Callable[[], None]) -> None:
    try:
        work()
    except OSError as error:
        hint = "--system needs root: sudo acpd service ..." if isinstance(error, PermissionError) else ""
        raise AcpdError(f"cannot change {path}: {error.strerror}", hint=hint) from None


# -- uninstall


def _uninstall(call: Call, place: Place) -> int:
    """The units go whether or not systemd runs; what it could not be told is the error then."""
    dry = call.values.dry_run
    there = [place.folder / name for name in UNITS if _ours(place.folder / name, "remove it")]
    if not there:
        call.out.say(f"there are no units of acpd in {place.folder}")
        return 0
    failed = None
    late = [shlex.join(place.command(*words)) for words in (("stop", *UNITS), ("daemon-reload",))]
    try:
        gone = f"the units are removed all the same; a systemd that runs must be told: {' ; '.join(late)}"
        _run(call, place.command("disable", "--now", *UNITS), hint=gone)
    except AcpdError as error:
        failed = error
    for path in there:
        call.out.say(f"{'would remove' if dry else 'remove'} {path}")
        if not dry:
            _changed(path, partial(resolve(_FILES).unlink, path))
    if failed is not None:
        raise failed
    _run(call, place.command("daemon-reload"))
    return 0


def _run(call: Call, *commands: list[str], hint: str = "") -> None:
    """One after the other, told, and run unless it is a dry run. Raises AcpdError, with what is left to be done, or `hint`."""
    for at, command in enumerate(commands):
        said = shlex.join(command)
        call.out.say(f"{'would run' if call.values.dry_run else 'run'} {said}")
        call.out.flush()
        if not call.values.dry_run and (cause := _failure(command)):
            left = " && ".join(map(shlex.join, commands[at:]))
            raise AcpdError(f"{said}: {cause}", hint=hint or f"where systemd runs: {left}; without it: acpd serve")


def _failure(command: list[str]) -> str:
    """Runs it. Why it failed; "" if it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except FileNotFoundError:
        return "there is no systemctl here"
    except subprocess.TimeoutExpired:
        return "it did not end within a minute"
    if not done.returncode:
        return ""
    return " ".join(done.stderr.split()) or f"exit code {done.returncode}"

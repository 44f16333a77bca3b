"""Where a daemon listens: the shim's quick way and the configuration's say the same."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd import where
from acpd.config import Config, Flags, Paths
from acpd.errors import ConfigError

FOLDERS = st.sampled_from(["", "/", "/tmp", "/nowhere/at/all", "relative", "~", "/root", "/proc/1", os.getcwd(), "/etc/passwd"])
ENVIRONMENTS = st.fixed_dictionaries(
    {},
    optional={
        "ACPD_HOME": FOLDERS,
        "XDG_RUNTIME_DIR": FOLDERS,
        "XDG_STATE_HOME": FOLDERS,
        "HOME": st.sampled_from(["/home/someone", "/nowhere"]),
        "SYSTEMD_EXEC_PID": st.sampled_from(["", "1", str(os.getpid())]),
        "RUNTIME_DIRECTORY": st.sampled_from(["", "/run/acpd", "/run/acpd:/run/other"]),
        "STATE_DIRECTORY": st.sampled_from(["", "/var/lib/acpd"]),
        "CONFIGURATION_DIRECTORY": st.sampled_from(["", "/etc/acpd"]),
    },
)


@given(ENVIRONMENTS)
def test_the_runtime_folder_is_that_of_the_configuration(env: dict[str, str]) -> None:
    """In every environment both name the same folder, or refuse it the same way."""
    try:
        expected = Paths.find(env).runtime
    except ConfigError:
        with pytest.raises(ConfigError, match=r"ACPD_HOME"):
            where.runtime(env)
    else:
        assert expected == where.runtime(env)


SAID = st.sampled_from(["", "a", "/a", "/a/../a", "~/a", "b/", "/b"])


@given(st.dictionaries(st.sampled_from(["config", "storage", "backend"]), SAID), st.dictionaries(st.sampled_from(
    ["ACPD_CONFIG", "ACPD_STORAGE_PATH", "ACPD_STORAGE_BACKEND", "ACPD_STORAGE_SYNC", "ACPD_USER"]), SAID))  # fmt: skip
def test_equal_words_name_equal_sockets(flags: dict[str, str], env: dict[str, str]) -> None:
    """Two choices have one socket if and only if they say the same: by flag or variable, in whatever spelling of a path."""
    words = where.store_words(flags, env)
    assert where.store_words(words, {}) == words
    assert where.socket_path("/run", flags, env) == where.socket_path("/run", words, {})
    assert (where.socket_path("/run", flags, env) == "/run/acpd.sock") == (not words)
    for name, value in words.items():
        other = where.socket_path("/run", {**words, name: f"{value}x"}, {})
        assert other != where.socket_path("/run", words, {})


def test_the_words_are_those_that_the_configuration_reads(tmp_path: Path) -> None:
    """The paths in a store's words are those that a Config has of the same flags and variables."""
    (tmp_path / "other.toml").write_text("")
    env = {"ACPD_HOME": str(tmp_path), "ACPD_STORAGE_PATH": "~/x/../y", "ACPD_CONFIG": os.path.relpath(tmp_path / "other.toml")}
    config = Config.load(Paths.find(env), env, Flags(backend="json"))
    words = where.store_words({"backend": "json"}, env)
    assert {"config": config.file, "storage": config.storage.path, "backend": config.storage.backend} == words


def test_a_name_tells_its_words_apart_for_ever() -> None:
    """The name of a store's socket is a part of the protocol: it must not change with a version."""
    assert "acpd-8a2192b5625dda7a.sock" == where.socket_name({"backend": "json", "storage": "/srv/sessions"})


def test_a_path_of_any_length_can_be_bound_and_reached(tmp_path: Path) -> None:
    """A socket below a folder whose path is longer than an address is made there and found there."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    path = str(folder / "acpd.sock")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        for end, call in ((server, "bind"), (client, "connect")):
            reached, opened = where.address(path)
            getattr(end, call)(reached)
            os.close(opened)
            if call == "bind":
                end.listen()
        assert ["acpd.sock"] == os.listdir(folder)
    assert (str(tmp_path / "acpd.sock"), -1) == where.address(str(tmp_path / "acpd.sock"))

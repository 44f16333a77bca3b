"""Where a key comes from, and who gets it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from acpd.errors import AUTH_REQUIRED, ConfigError
from acpd.native import keys
from acpd.native.history import History
from acpd.native.offers import Offers
from acpd.native.settings import Settings
from acpd.tasks import Tasks
from tests.native.turns import Told, talk
from tests.support.models import model_server

USUAL = ("OPENAI_API_KEY", "OTHER_KEY")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config").mkdir()
    return {"ACPD_HOME": str(tmp_path)}


def put(env: dict[str, str], text: str, mode: int = 0o600) -> Path:
    file = Path(keys.path(env))
    file.write_text(text)
    file.chmod(mode)
    return file


def refused(env: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        keys.stored(env)
    return str(caught.value)


def test_the_file_of_keys_is_read(env: dict[str, str]) -> None:
    """Its lines are variables and keys; no file is no key."""
    assert {} == keys.stored(env)
    put(env, 'A_KEY = "sk-1" # mine\n')
    assert {"A_KEY": "sk-1"} == keys.stored(env)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660])
def test_a_file_that_others_can_read_is_refused(env: dict[str, str], mode: int) -> None:
    """The error says what to do, and shows no key."""
    file = put(env, 'A_KEY = "hunter2"\n', mode)
    assert f"{file} can be read by others: no key is taken from it (chmod 600 {file})" == refused(env)


def test_nobody_waits_at_a_fifo_for_keys(env: dict[str, str]) -> None:
    """What is no file of ours is refused at once, whoever may write to it one day."""
    file = put(env, "")
    file.unlink()
    os.mkfifo(file, 0o600)
    assert refused(env).startswith(f"{file} ")


@pytest.mark.parametrize(
    "text", ["A_KEY = hunter2\n", 'A_KEY = ["hunter2"]\n', 'A_KEY = "hunter2 x"\n', '"hunter2 " = 1\n', "[hunter2"]
)
def test_a_file_that_is_wrong_shows_nothing_of_itself(env: dict[str, str], text: str) -> None:
    """An error of the file of keys names it, says how it is written, and repeats nothing that may be a key."""
    file = put(env, text)
    said = refused(env)
    assert said.startswith(str(file))
    assert 'VARIABLE = "the key"' in said
    assert "hunter2" not in said


def test_bytes_that_are_no_text(env: dict[str, str]) -> None:
    """Bytes that are no UTF-8 are an error, and so is a folder."""
    file = put(env, "")
    file.write_bytes(b"\xff")
    assert "is not TOML" in refused(env)
    file.unlink()
    file.mkdir()
    assert "cannot read" in refused(env)


def test_a_variable_wins_over_the_file(env: dict[str, str]) -> None:
    """What is set in the environment wins; a variable that is empty is not set."""
    put(env, 'OPENAI_API_KEY = "stored"\nX_KEY = "x"\n')
    seen = keys.environment(Settings(), {**env, "OPENAI_API_KEY": "set", "X_KEY": ""}, ())
    assert ("set", "x") == (seen["OPENAI_API_KEY"], seen["X_KEY"])


def test_blanks_around_a_key_are_no_part_of_it(env: dict[str, str]) -> None:
    """A variable that was set from a file ends with a newline, which no header may have."""
    seen = keys.environment(Settings(), {**env, "OPENAI_API_KEY": " set\n", "X_KEY": "\n"}, ())
    assert "set" == seen["OPENAI_API_KEY"]
    assert "X_KEY" not in seen
    named = keys.environment(Settings(model="openai:m", api_key_env="MINE"), {**env, "MINE": "mine\n"}, USUAL)
    assert "mine" == named["OPENAI_API_KEY"]


def test_api_key_env_takes_the_place_of_the_usual_variables(env: dict[str, str]) -> None:
    """The provider gets the key of the variable that was named, wherever that stands, and none of its usual ones."""
    put(env, 'MINE = "mine"\n')
    settings = Settings(model="openai:m", api_key_env="MINE")
    seen = keys.environment(settings, {**env, "OPENAI_API_KEY": "usual", "OTHER_KEY": "other"}, USUAL)
    assert "mine" == seen["OPENAI_API_KEY"]
    assert "OTHER_KEY" not in seen


def test_a_named_variable_that_is_missing_is_an_error(env: dict[str, str]) -> None:
    """It is never replaced by another key: the error names the variable, the next step, and asks for a login."""
    with pytest.raises(keys.KeyMissing, match=r"there is no key: MINE, .*acpd-agent --setup") as caught:
        keys.environment(Settings(model="openai:m", api_key_env="MINE"), {**env, "OPENAI_API_KEY": "usual"}, USUAL)
    assert AUTH_REQUIRED == caught.value.code


def test_no_server_gets_a_key_that_was_not_made_for_it(env: dict[str, str]) -> None:
    """With a base_url and no api_key_env the provider's usual key stays here; with it that key goes there, and no other."""
    given = {**env, "OPENAI_API_KEY": "usual", "MINE": "mine"}
    elsewhere = Settings(model="openai:m", base_url="http://localhost:1/v1")
    assert "usual" not in keys.environment(elsewhere, given, USUAL).values()
    named = Settings(model="openai:m", base_url="http://localhost:1/v1", api_key_env="OPENAI_API_KEY")
    assert "usual" == keys.environment(named, given, USUAL)["OPENAI_API_KEY"]


@pytest.mark.parametrize(
    "settings",
    [Settings(model="moonshotai:m", base_url="http://localhost:1/v1"), Settings(model="moonshotai:m", api_key_env="MINE")],
)
def test_a_provider_that_we_do_not_know_is_not_led_elsewhere(env: dict[str, str], settings: Settings) -> None:
    """What cannot be passed on to it is an error, and the model is not asked anywhere."""
    offers = Offers(settings, {**env, "MINE": "mine", "MOONSHOTAI_API_KEY": "x"}, Tasks(lambda _, error: None))
    assert offers.usual is None
    assert "moonshotai:m is of none of them" in str(offers.trouble)


@pytest.mark.e2e
async def test_the_headers_of_one_server_go_to_no_other(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """ANTHROPIC_CUSTOM_HEADERS goes where the environment leads, and not to a base_url that was configured."""
    monkeypatch.setenv(keys.HEADERS, "X-Gate: canary\nX-Api-Key: canary")
    with model_server() as server:
        given = {**env, keys.HEADERS: "X-Gate: canary\nX-Api-Key: canary", "ANTHROPIC_API_KEY": "mine"}
        there = Settings(model="anthropic:claude-sonnet-5-5", base_url=server.url, api_key_env="ANTHROPIC_API_KEY")
        usual = Settings(model="anthropic:claude-sonnet-5-5")
        for settings, more in ((there, {}), (usual, {"ANTHROPIC_BASE_URL": server.url})):
            offers = await asyncio.to_thread(Offers, settings, {**given, **more}, Tasks(lambda _, error: None))
            assert offers.usual is not None
            await talk(Told("[[say x]]"), await offers.loaded(offers.usual), History())
    assert "canary" not in str(server.headers[0])
    assert "mine" == server.headers[0]["x-api-key"]
    assert "canary" == server.headers[1]["x-gate"]


@pytest.mark.parametrize("chosen", ["openai:other", "openai-chat:m", "openai-responses:m"])
def test_a_session_cannot_take_a_key_elsewhere(env: dict[str, str], chosen: str) -> None:
    """Another model that would use the key of the configured one is asked where that key belongs."""
    url = "http://localhost:1/v1"
    settings = Settings(model="openai:m", base_url=url, api_key_env="MINE")
    offers = Offers(settings, {**env, "MINE": "mine"}, Tasks(lambda _, error: None))
    assert url == offers.named(chosen).base_url
    assert {url} == {each.base_url for each in offers.offered()}

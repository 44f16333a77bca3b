"""What acpd-agent is told: the file, the variables, the arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from acpd.errors import ConfigError
from acpd.native import settings
from acpd.native.settings import Settings, load


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"ACPD_HOME": str(tmp_path)}


def write(env: dict[str, str], text: str) -> str:
    file = Path(env["ACPD_HOME"], "config", "acpd.toml")
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return str(file)


def refused(argv: list[str], env: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(argv, env)
    return str(caught.value)


def test_nothing_said_is_the_defaults(env: dict[str, str]) -> None:
    """Without file, variables and arguments every key has its default, and it is known where a file would be."""
    assert Settings(file=f"{env['ACPD_HOME']}/config/acpd.toml") == load([], env)


def test_file_then_variables_then_arguments(env: dict[str, str]) -> None:
    """A variable wins over the file, an argument over the variable."""
    write(env, '[agents.native]\nmodel = "openai:a"\nmode = "plan"\nthinking = "low"\nmcp_timeout = 3\n')
    env |= {"ACPD_AGENTS_NATIVE_MODE": "code", "ACPD_AGENTS_NATIVE_THINKING": "high", "ACPD_AGENTS_NATIVE_MAX_REQUESTS": "5"}
    told = load(["--thinking=off", "--key-env", "K"], env)
    assert ("openai:a", "code", "off", "K", 5, 3.0) == (
        told.model,
        told.mode,
        told.thinking,
        told.api_key_env,
        told.max_requests,
        told.mcp_timeout,
    )


def test_the_file_is_the_one_that_acpd_reads(env: dict[str, str], tmp_path: Path) -> None:
    """--config wins over ACPD_CONFIG, and that over the usual place; one that is named must exist."""
    write(env, '[agents.native]\nmodel = "openai:usual"\n')
    for name in ("variable", "argument"):
        (tmp_path / name).write_text(f'[agents.native]\nmodel = "openai:{name}"\n')
    assert "openai:usual" == load([], env).model
    env["ACPD_CONFIG"] = str(tmp_path / "variable")
    assert "openai:variable" == load([], env).model
    told = load(["--config", str(tmp_path / "argument")], env)
    assert ("openai:argument", str(tmp_path / "argument")) == (told.model, told.file)
    assert "--config names /no, which does not exist" in refused(["--config", "/no"], env)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--modell", "x:y"], "unknown argument --modell (acpd-agent --help"),
        (["--model"], "--model needs a value"),
        (["--model=gpt"], "--model: agents.native.model is 'gpt', must be PROVIDER:MODEL"),
        (
            ["--model=foo:bar"],
            "--model: agents.native.model names a provider 'foo', which there is not (providers: openai, anthropic",
        ),
        (["--mode", "yolo"], """--mode: agents.native.mode is 'yolo', must be "ask\""""),
        (["--base-url", "localhost"], "--base-url: agents.native.base_url must be a URL"),
        (["word"], "unknown argument word"),
        (["--base-url", "http://x/v1"], "agents.native.base_url needs agents.native.model beside it"),
    ],
)
def test_what_arguments_must_not_say(env: dict[str, str], argv: list[str], said: str) -> None:
    """A wrong argument is named with what is allowed."""
    assert said in refused(argv, env)


def test_what_the_file_must_not_say(env: dict[str, str]) -> None:
    """What is wrong in our own table names its line; the rest of the file is acpd's to judge."""
    file = write(env, '[storage]\nsync = "never"\n[agents.native]\nmodel = 3\n')
    assert f"{file} line 4: agents.native.model is 3" in refused([], env)
    write(env, '[storage]\nsync = "never"\n[agents.native]\nmode = "code"\n')
    assert "code" == load([], env).mode
    write(env, "[agents]\nnative = true\n")
    assert "agents.native must be a table" in refused([], env)
    write(env, "[agents.native]\nmode =\n")
    assert "is not TOML" in refused([], env)


def test_a_key_in_the_wrong_place_is_not_repeated(env: dict[str, str]) -> None:
    """Where somebody may have written a key, the error does not show what was written."""
    assert "hunter2" not in refused(["--key-env", "sk-hunter2"], env)
    assert "hunter2" not in refused(["--api-key=sk-hunter2"], env)
    assert "hunter2" not in refused([], {**env, "ACPD_AGENTS_NATIVE_API_KEY_ENV": "sk-hunter2"})


@pytest.mark.parametrize(("text", "needed"), [("[log]\n", False), ('[agents.native]\nmodel = "openai:b"\n', True)])
def test_toml_is_parsed_only_where_it_speaks_of_us(env: dict[str, str], text: str, needed: bool) -> None:
    """A file without our table costs no TOML parser at the start."""
    write(env, text)
    code = f"import sys; from acpd.native.settings import load; load([], {env!r}); print('tomllib' in sys.modules)"
    assert f"{needed}\n" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_every_argument_stands_for_a_key() -> None:
    """Each flag with a value is a key of [agents.native]."""
    assert set(settings.FLAGS.values()) <= set(Settings.__struct_fields__)

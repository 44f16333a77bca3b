"""`acpd-agent --setup`: choose a model, try it, write `[agents.native]` and, where it is wanted, the key.

It is the terminal login of ACP (`type: "terminal"`): an editor runs it in a terminal of its own, by way of acpd too. Everything
is asked and tried before anything is written; a key that was typed is in this process only, until it is in `keys.toml`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from acpd import ownagent
from acpd.config import variable
from acpd.errors import AcpdError, ConfigError
from acpd.native import keys, models
from acpd.native.listing import listed
from acpd.native.settings import Settings, arguments, load
from acpd.stores import resolve

if TYPE_CHECKING:
    import httpx2

    from acpd.native.models import Chosen

DONE, FAILED, INTERRUPTED = 0, 1, 130
KEYS_HEAD = "# Keys of models for acpd-agent, by the names of their variables. Only you may read this file.\n"
OTHER_KEY = "MODEL_API_KEY"
"""The variable of a key for a server that is no provider's own."""
TRIAL = 60.0
"""Seconds that a model may take to say a word; some are loaded first."""
LISTED = 30
"""Models of a server that are offered by number."""
LIKE = 5
"""Models that are named where the one that was wanted is not there."""
OFFERED = ("anthropic", "openai", "google", "openrouter", "deepseek", "dashscope", "ollama")


class Wish(NamedTuple):
    """What is to be tried and written. `key_env`: the variable of the key, "": there is none. `key`: one that was typed."""

    model: str
    base_url: str = ""
    key_env: str = ""
    key: str = ""


class _GivenUp(AcpdError):
    """Nothing was written."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code: 0 written, 1 not, 130 interrupted. Raises ConfigError for what is wrong with arguments or files."""
    terminal = Terminal()
    try:
        settings = load(argv, environ)
        said = dict(arguments(argv))
        wish = _said(said, environ) if "--model" in said else _asked(terminal, environ)
        _try(terminal, wish, environ, must="--untested" not in said, ask="--model" not in said)
        _write(terminal, wish, settings, environ)
    except KeyboardInterrupt:
        terminal.say("\nNothing was changed.")
        return INTERRUPTED
    except EOFError:
        terminal.say("\nThere is nobody to answer: nothing was changed. In scripts: acpd-agent --setup --model PROVIDER:MODEL")
        return FAILED
    except ConfigError:
        raise
    except AcpdError as error:
        sys.stderr.write(f"acpd-agent: {error}\n")
        return FAILED
    return DONE


class Terminal:
    """Questions and answers. Whoever calls `ask` and `secret` lets EOFError and KeyboardInterrupt through."""

    def say(self, text: str = "") -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def ask(self, question: str, default: str = "") -> str:
        sys.stdout.write(f"{question}{f' [{default}]' if default else ''}: ")
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.strip() or default

    def secret(self, question: str) -> str:
        """Not shown while it is typed."""
        import getpass

        return getpass.getpass(f"{question}: ").strip()

    def choose(self, question: str, titles: Sequence[str]) -> int:
        for number, title in enumerate(titles, 1):
            self.say(f"  {number}  {title}")
        while True:
            answer = self.ask(question, "1")
            if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(titles):
                return int(answer) - 1
            self.say(f"A number from 1 to {len(titles)}, please.")

    def name(self, question: str, offered: Sequence[str]) -> str:
        """One of those that are offered, by its number, or any other: a server need not list all that it has."""
        for number, title in enumerate(offered[:LISTED], 1):
            self.say(f"  {number}  {title}")
        if len(offered) > LISTED:
            self.say(f"  and {len(offered) - LISTED} more, by their names")
        what = f"A number from 1 to {min(len(offered), LISTED)}, or a name" if offered else "A name"
        while True:
            answer = self.ask(question, "1" if offered else "")
            number = int(answer) if answer.isascii() and answer.isdigit() else 0
            if 1 <= number <= min(len(offered), LISTED):
                return offered[number - 1]
            if answer and not number and not any(map(str.isspace, answer)):
                return answer
            self.say(f"{what}, please.")


# -- what is wished


def _said(said: Mapping[str, str], environ: Mapping[str, str]) -> Wish:
    """By arguments, and the key on stdin. Raises ConfigError."""
    url = said.get("--base-url", "")
    usual = models.key_names(said["--model"])
    key = sys.stdin.readline().strip() if "--key-stdin" in said else ""
    if "--key-stdin" in said and not keys.is_key(key):
        raise ConfigError("the first line of stdin is no key", hint="visible ASCII characters, as the provider gave it out")
    name = said.get("--key-env", "")
    if not name and key and (url or not usual):
        name = OTHER_KEY
    if not name and not url and usual:
        name = next((name for name in usual if environ.get(name)), usual[0])
    return Wish(said["--model"], url, name, key)


def _asked(terminal: Terminal, environ: Mapping[str, str]) -> Wish:
    if not os.isatty(0):
        raise EOFError
    terminal.say("acpd-agent needs a model to talk to.\n")
    local = _ollama(environ)
    titles = [_title(provider, environ, local) for provider in OFFERED]
    chosen = terminal.choose("Which one", [*titles, "another server that speaks OpenAI's protocol (vLLM, llama.cpp, a proxy)"])
    if chosen == len(OFFERED):
        return _asked_server(terminal)
    provider = OFFERED[chosen]
    known = models.PROVIDERS[provider]
    if provider == "ollama":
        names = [model.name for model in local]
        return Wish(f"ollama:{terminal.ask('Model', names[0] if names else 'qwen3')}")
    stored = {**keys.stored(environ), **environ}
    name = next((name for name in known.keys if stored.get(name)), "")
    key = "" if name else _asked_key(terminal, f"The key of {known.title}, not shown (empty: I will set {known.keys[0]})")
    return Wish(f"{provider}:{terminal.ask('Model', known.model)}", "", name or known.keys[0], key)


def _title(provider: str, environ: Mapping[str, str], local: Sequence[Chosen]) -> str:
    known = models.PROVIDERS[provider]
    if provider == "ollama":
        return (
            f"{known.title} ({len(local)} model{'s' * (len(local) != 1)} on this machine)"
            if local
            else f"{known.title} (none answers here)"
        )
    found = next((name for name in known.keys if environ.get(name)), "")
    return f"{known.title} ({found} is set)" if found else known.title


def _ollama(environ: Mapping[str, str]) -> tuple[Chosen, ...]:
    import asyncio

    return asyncio.run(models.find_ollama(environ))


def _asked_server(terminal: Terminal) -> Wish:
    while True:
        url = terminal.ask("Its address, such as http://localhost:8080/v1")
        try:
            ownagent.Told({}).put("base_url", url, "", "address", strict=True)
        except ConfigError as error:
            terminal.say(str(error))
            continue
        if url:
            break
    key = _asked_key(terminal, "Its key, not shown (empty: it needs none)")
    chosen = models.Chosen("openai", "", url)
    name = terminal.name("Model", [each.name for each in listed(chosen, {"OPENAI_API_KEY": key})])
    return Wish(f"openai:{name}", url, OTHER_KEY if key else "", key)


def _asked_key(terminal: Terminal, question: str) -> str:
    while (key := terminal.secret(question)) and not keys.is_key(key):
        terminal.say("That is no key: it has characters that cannot be sent.")
    return key


# -- trying it


def _try(terminal: Terminal, wish: Wish, environ: Mapping[str, str], *, must: bool, ask: bool) -> None:
    """Raises _GivenUp if it does not work and is not wanted all the same. Who answers may set the variable of the key later."""
    if not must:
        return
    if ask and not wish.key and wish.key_env and not {**keys.stored(environ), **environ}.get(wish.key_env):
        terminal.say(f"{wish.model} was not tried: {wish.key_env} is not set yet.")
        return
    terminal.say(f"Asking {wish.model} for a word ...")
    why = _fault(wish, environ)
    if not why:
        terminal.say("It answers.")
        return
    terminal.say(f"It does not work: {why}")
    if not ask:
        raise _GivenUp(
            "nothing was written, because the model does not work", hint="with --untested it is written all the same"
        )
    if terminal.ask("Write it all the same? (yes/no)", "no").lower() not in {"y", "yes"}:
        raise _GivenUp("nothing was written", hint="run acpd-agent --setup again")


def _fault(wish: Wish, environ: Mapping[str, str]) -> str:
    """What is wrong with it, for people and without the key; "": it has answered."""
    import asyncio

    try:
        known = seen(wish, environ)
        chosen = models.parse(wish.model, known, wish.base_url)
        loaded = models.load(chosen, known)
    except AcpdError as error:
        return str(error)
    from pydantic_ai.direct import model_request
    from pydantic_ai.messages import ModelRequest

    from acpd.native import outcomes
    from acpd.native.answers import SEEN

    answers: list[httpx2.Response] = []

    async def word() -> None:
        SEEN.set(answers)
        async with asyncio.timeout(TRIAL), loaded.http, loaded.model:
            await model_request(loaded.model, [ModelRequest.user_text_prompt("Answer with the word: ok")])

    try:
        asyncio.run(word())
    except TimeoutError:
        return f"{chosen.title} gave no answer within {TRIAL:.0f} s."
    except Exception as error:  # noqa: BLE001  the SDKs raise what they like
        broken = answers and outcomes.is_broken(error)
        if not broken and not outcomes.is_known(error):
            sys.stderr.write(outcomes.without("".join(traceback.format_exception(error)), models.keys_in(known)))
        why = outcomes.fault(outcomes.AnswerBroken(answers[-1].status_code) if broken else error, chosen, models.keys_in(known))
        like = _like(chosen, known) if outcomes.is_unknown_model(error) else ""
        return f"{why.rstrip('.')}. {like}" if like else why
    return ""


def _like(chosen: Chosen, environ: Mapping[str, str]) -> str:
    """What its server has that is called so or so, if it says."""
    import difflib

    names = [each.name for each in listed(chosen, environ)]
    close = difflib.get_close_matches(chosen.name, names, LIKE, 0.4) or names[:LIKE]
    more = f" and {len(names) - len(close)} more" if len(names) > len(close) else ""
    return f"It lists: {', '.join(close)}{more}." if close else ""


def seen(wish: Wish, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment as the agent will see it once the wish is written."""
    typed = {wish.key_env: wish.key} if wish.key else {}
    settings = Settings(model=wish.model, base_url=wish.base_url, api_key_env=_key_env(wish))
    return keys.environment(settings, {**environ, **typed}, models.key_names(wish.model))


def _key_env(wish: Wish) -> str:
    """`api_key_env` as it is written: "" where the provider's usual variable says the same."""
    return "" if wish.key_env in models.key_names(wish.model) and not wish.base_url else wish.key_env


# -- writing it


def _write(terminal: Terminal, wish: Wish, settings: Settings, environ: Mapping[str, str]) -> None:
    """The key first: a model without its key would be an agent that does not work."""
    if wish.key:
        file = keys.path(environ)
        keys.stored(environ)  # nothing is added to a file that others can read
        _change(file, "", {wish.key_env: wish.key}, KEYS_HEAD)
        terminal.say(f"The key is in {file}, which only you can read, as {wish.key_env}.")
    elif wish.key_env and wish.key_env not in keys.stored(environ):
        terminal.say(f"The key is read from {wish.key_env}: it must be set where the editor starts the agent.")
    _say_left(terminal, environ, wish)
    table = {"model": wish.model, "base_url": wish.base_url or None, "api_key_env": _key_env(wish) or None}
    _change(settings.file, ownagent.SECTION, table)
    terminal.say(f'[{ownagent.SECTION}] model = "{wish.model}" is in {settings.file}.')
    for word in (variable(f"{ownagent.SECTION}.{name}") for name in table):
        if environ.get(word):
            terminal.say(f"But {word} is set, and wins over the file: unset it.")
    terminal.say(f"{_next(settings, environ)}\n")


def _say_left(terminal: Terminal, environ: Mapping[str, str], wish: Wish) -> None:
    """Keys of other models stay: they may be needed again, and are not ours to throw away."""
    used = {wish.key_env, *(() if wish.base_url else models.key_names(wish.model))}
    left = [name for name in keys.stored(environ) if name not in used]
    if left:
        terminal.say(f"{keys.path(environ)} still holds {', '.join(left)}, which this model does not need.")


def _change(file: str, section: str, values: Mapping[str, str | None], head: str = "") -> None:
    """`head`: how a new file begins. Raises ConfigError if it cannot be read, changed or written; then it is as before."""
    from acpd.native.edits import changed

    files = resolve("acpd_backends.files:FILES")
    target = Path(os.path.realpath(file))  # a link stays one
    try:
        old = target.read_bytes().decode() if target.exists() else head
        new = changed(old, section, values, file)
        files.make_folders(target.parent, sync=False)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        files.write_atomic(target, new.encode(), sync=True)
        if mode != 0o600:
            os.chmod(target, mode)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 at byte {error.start}: nothing was changed") from None
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename or file}: {error.strerror}", hint="check the rights of the folder"
        ) from None


def _next(settings: Settings, environ: Mapping[str, str]) -> str:
    """What starts the agent now. Raises ConfigError if the rest of the file is wrong."""
    from acpd.config import Config, Flags, Paths

    config = Config.load(Paths.find(environ), environ, Flags(config=settings.file))
    if not config.agents.default and len(config.agents.programs) > 1:
        return "`acpd --agent native` serves it."
    chosen = config.choose().name
    return (
        "`acpd` serves it from now on." if chosen == ownagent.NATIVE else f"`acpd --agent native` serves it; without, {chosen}."
    )

"""The documents say what the code says: commands, keys, lines, modules, names; and nothing of where they were written."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from acpd import config, ownagent
from acpd.cli import arguments
from acpd.cli.arguments import split
from acpd.errors import ConfigError
from acpd.native.models import PROVIDERS
from acpd.storage.upkeep import KINDS
from acpd.wire import lines
from tests.support.paths import ROOT

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
SNIPPETS = sorted((ROOT / "config" / "editors").iterdir())
SOURCES = sorted([*(ROOT / "acpd").rglob("*.py"), *(ROOT / "backends").rglob("*.py")])
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"[A-Z_]+=\S*")
_OURS = re.compile(r"([A-Z_]+=\S* )*acpd( |$)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def fenced(path: Path, language: str) -> list[str]:
    return [text for kind, text in _FENCE.findall(path.read_text()) if kind == language]


def sections(path: Path) -> dict[str, str]:
    """From each heading, without its marks, to the text below it up to the next heading of any depth."""
    found: dict[str, str] = {}
    heading = ""
    for line in _FENCE.sub(lambda match: match[0].replace("\n#", "\n "), path.read_text()).splitlines():
        if match := re.match(r"#+ (.*)", line):
            heading = match[1].strip("`")
            assert heading not in found, f"{heading} twice in {name(path)}"
            found[heading] = ""
        elif heading:
            found[heading] += line + "\n"
    return found


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "config" / "acpd.toml", *SOURCES], ids=name)
def test_models_of_the_large_providers_are_the_usual_ones(path: Path) -> None:
    """An example is what the setup offers, or a model of another server: those of yesterday are not looked up again."""
    named = re.findall(r"\b(anthropic|google|openai):((?:claude|gemini|gpt)[\w.-]*\w)", path.read_text())
    assert {(provider, PROVIDERS[provider].model) for provider, _ in named} == set(named)


def anchor(heading: str) -> str:
    """What the usual renderers make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def words_of(line: str) -> list[str] | None:
    """The arguments of one shell line that runs acpd, else None. Only what stands before a pipe or redirection is looked at."""
    if _OURS.match(line) is None:
        return None
    words = shlex.split(line, comments=True)
    while _VARIABLE.fullmatch(words[0]):
        words = words[1:]
    ends = [at for at, word in enumerate(words) if word in {"|", ">", "<", "&&", ";"}]
    return words[1 : ends[0] if ends else None]


def parsed(words: list[str]) -> argparse.Namespace:
    """As the program parses them. Raises ConfigError."""
    before, after = split(words)
    values = arguments.parser().parse_args(before)
    assert not after or values.command == "run", words
    values.words = [*getattr(values, "words", []), *after]
    assert values.command != "run" or values.words, "acpd run without a command"
    return values


def subcommands() -> dict[str, argparse.ArgumentParser]:
    actions = [action for action in arguments.parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(actions[0].choices)


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {text for action in parser._actions for text in action.option_strings if text.startswith("--")}


SHELL_LINES = [
    (name(path), line)
    for path in DOCUMENTS
    for language in ("sh", "console")
    for block in fenced(path, language)
    for line in block.splitlines()
    if line.strip() and not line.startswith((" ", "\t"))
]


# -- commands


def test_shell_lines() -> None:
    """Every line of a document that runs acpd is one that the real command line takes."""
    ours = [(where, words) for where, line in SHELL_LINES if (words := words_of(line)) is not None]
    assert len(ours) >= 15
    for where, words in ours:
        assert parsed(words) is not None, where


def test_a_wrong_shell_line_is_found() -> None:
    """The test above would notice a flag or command that does not exist, and a run without a command."""
    for line in ("acpd ls --everything", "acpd sarve", "acpd run --", "ACPD_HOME=/x acpd show", "acpd ls -- x"):
        words = words_of(line)
        assert words is not None
        with pytest.raises((ConfigError, AssertionError)):
            parsed(words)


def test_make_targets() -> None:
    """Every make target that a document names is one of the Makefile's."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {match for _, line in SHELL_LINES for match in re.findall(r"^make ([\w-]+)", line)}
    assert {"run", "test"} <= named
    assert named <= targets


def test_commands_have_their_headings() -> None:
    """docs/cli.md has a heading for each command and names each of its flags there; and no command that is none."""
    text = sections(ROOT / "docs" / "cli.md")
    shared = options(arguments.common())
    assert not [flag for flag in shared if flag not in text["Everywhere"]]
    commands = {"acpd": arguments.parser(), **{f"acpd {key}": parser for key, parser in subcommands().items()}}
    assert {heading for heading in text if heading.startswith("acpd")} == set(commands)
    for heading, parser in commands.items():
        flags = options(parser) - shared - {"--help"}
        assert not [flag for flag in flags if f"`{flag}" not in text[heading]], heading
        table = re.findall(r"^\| `(--[\w-]+)", text[heading], re.MULTILINE)
        assert set(table) == flags, heading


# -- configuration


def test_keys_have_their_headings() -> None:
    """docs/config.md has a heading for each key with its default, and no key that is none."""
    text = sections(ROOT / "docs" / "config.md")
    keys = {*config.WANTED, *ownagent.KEYS} | {f"agents.NAME.{field.name}" for field in msgspec.structs.fields(config.Agent)}
    assert {heading for heading in text if re.fullmatch(r"[a-z]+(\.\w+)+", heading)} == keys
    assert {f"[{section}]" for section in config.SECTIONS} | {"[agents.NAME]", "[agents.native]"} == {
        head for head in text if head.startswith("[")
    }
    for key in (*config.WANTED, *ownagent.KEYS):
        section, member = key.rsplit(".", 1)
        default = getattr(ownagent.Native() if key in ownagent.KEYS else config.SECTIONS[section](), member)
        shown = str(default).lower() if isinstance(default, bool) else default
        said = f"Default `{shown}`" if shown else "efault"
        assert said in text[key], key
        assert key not in config.FLAG_NAMES or f"`{config.FLAG_NAMES[key]}`" in text[key], key


def test_keys_of_the_annotated_file() -> None:
    """config/acpd.toml has each section and key of the configuration, and nothing else."""
    text = (ROOT / "config" / "acpd.toml").read_text()
    found, section = set[str](), ""
    for line in text.splitlines():
        if match := re.fullmatch(r"(?:# )?\[([\w.]+)\]", line):
            section = re.sub(r"^agents\.(?!native).*", "agents.NAME", match[1])
        elif match := re.match(r"(?:# )?(\w+) = ", line):
            found.add(f"{section}.{match[1]}")
    assert found == {*config.WANTED, *ownagent.KEYS} | {f"agents.NAME.{key}" for key in config.WANTED_OF_AGENT}


def test_toml_blocks(tmp_path: Path) -> None:
    """Every acpd.toml that a document shows is one that acpd reads."""
    blocks = [text for path in DOCUMENTS for text in fenced(path, "toml") if "entry-points" not in text]
    assert blocks
    for text in blocks:
        (tmp_path / "acpd.toml").write_text(text)
        paths = config.Paths(str(tmp_path), str(tmp_path), str(tmp_path))
        agents = config.Config.load(paths, {}).agents
        assert agents.programs or agents.native


def test_variables() -> None:
    """Every ACPD_ variable that a document names is one that the code reads or sets."""
    source = "\n".join(path.read_text() for path in SOURCES)
    known = {config.variable(key) for key in (*config.WANTED, *ownagent.KEYS)} | set(
        re.findall(r'"(ACPD_[A-Z_]*[A-Z])"', source)
    )
    named = {match for path in DOCUMENTS for match in re.findall(r"ACPD_[A-Z_]*[A-Z]", path.read_text())}
    assert named
    assert named <= known


# -- editors


def programs(value: Any) -> list[list[str]]:
    """The commands in a JSON configuration: {"command": ..., "args": [...]} and {"argv": [...]}."""
    if isinstance(value, dict):
        if "argv" in value:
            return [value["argv"]]
        if isinstance(value.get("command"), str):
            return [[value["command"], *value.get("args", [])]]
        return [found for each in value.values() for found in programs(each)]
    return []


def quoted_words(text: str) -> list[list[str]]:
    """The commands in Lua and Emacs Lisp: the quoted words of a list that has "acpd" in it, or of `command` and `args`."""
    found = [re.findall(r'"([^"]*)"', group) for group in re.findall(r'[{(]((?:\s*"[^"]*",?)+\s*)[})]', text)]
    separate = re.search(r'command = "acpd",\s*args = \{([^}]*)\}', text)
    if separate:
        return [["acpd", *re.findall(r'"([^"]*)"', separate[1])]]
    return [words for words in found if words[0] == "acpd"]


@pytest.mark.parametrize("path", SNIPPETS, ids=lambda path: path.name)
def test_editor_files(path: Path) -> None:
    """What an editor is told to run is acpd, with arguments that it takes."""
    text = path.read_text()
    commands = programs(json.loads(text)) if path.suffix == ".json" else quoted_words(text)
    assert commands
    for command in commands:
        assert Path(command[0]).name == "acpd"
        values = parsed(command[1:])
        assert values.command == "run" or values.agent


def test_editor_blocks() -> None:
    """The README's blocks for editors run acpd with arguments that it takes; Zed's says that it is custom."""
    readme = ROOT / "README.md"
    objects = [json.loads(text) for text in fenced(readme, "json")]
    commands = [command for value in objects for command in programs(value)]
    commands += [command for kind in ("lua", "elisp") for text in fenced(readme, kind) for command in quoted_words(text)]
    assert len(commands) == 5
    for command in commands:
        assert Path(command[0]).name == "acpd"
        assert parsed(command[1:]).command == "run"
    servers = json.loads((ROOT / "config" / "editors" / "zed.json").read_text())["agent_servers"]
    assert {"custom"} == {server["type"] for server in servers.values()}
    assert objects[0]["agent_servers"].items() <= servers.items()
    assert objects[1] == json.loads((ROOT / "config" / "editors" / "jetbrains-acp.json").read_text())


# -- storage, protocol, architecture


def test_line_types() -> None:
    """docs/storage.md has a row for each type of line that the decoder knows, with members that it knows."""
    rows = re.findall(r"^\| `(\w+)` \| (entry|fact) \| (.*) \|$", sections(ROOT / "docs" / "storage.md")["Lines"], re.MULTILINE)
    cells = re.findall(r"^ *\| ([a-z, ]*[a-z]) \|", str(lines.Stored.__doc__), re.MULTILINE)
    assert {"type", *(kind for kind, _, _ in rows)} == {kind for cell in cells for kind in cell.split(", ")}
    known = set(lines.Stored.__struct_encode_fields__)
    for kind, _, members in rows:
        first = re.findall(r"`(\w+)`", members)
        assert kind == "compaction" or first[0] in known, kind


def test_kinds_of_findings() -> None:
    """docs/storage.md names each kind of finding that fsck has, and no other."""
    text = sections(ROOT / "docs" / "storage.md")["Damage"].split("What fsck knows:")[1]
    assert set(re.findall(r"`([a-z0-9-]+)`", text)) == set(KINDS)


def test_header_block() -> None:
    """The header that docs/storage.md shows is one."""
    (text,) = fenced(ROOT / "docs" / "storage.md", "json")
    assert lines.decode_header(text.encode()).agent == "codex"


def test_methods() -> None:
    """docs/protocol.md has every method that the router serves and every one that an agent may call."""
    text = sections(ROOT / "docs" / "protocol.md")
    router = (ROOT / "acpd" / "router.py").read_text()
    served = set(re.findall(r'^    "([\w/]+)": Connection\.', router, re.MULTILINE))
    assert len(served) >= 10
    assert not [
        method for method in served | {"initialize", "session/prompt"} if f"`{method}`" not in text["Methods of a client"]
    ]
    services = (ROOT / "acpd" / "agents" / "services.py").read_text()
    asked = set(re.findall(r'"((?:fs|terminal)/\w+)"', services))
    assert len(asked) == 7
    assert not [method for method in asked if f"`{method}`" not in text["Methods of an agent"]]


def test_names_of_acpd() -> None:
    """docs/protocol.md names each `acpd.dev/` member that the code writes, and no other."""
    source = "\n".join(path.read_text() for path in SOURCES)
    text = (ROOT / "docs" / "protocol.md").read_text()
    assert set(re.findall(r"acpd\.dev/[a-z]+", source)) == set(re.findall(r"acpd\.dev/[a-z]+", text))


def test_modules() -> None:
    """docs/architecture.md names every module, and no file that is not there."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    modules = {path.name for path in SOURCES if not path.name.startswith("__")}
    named = {Path(match).name for match in re.findall(r"`([\w/]+\.py)`", text)}
    assert modules == named


def test_references_from_the_code() -> None:
    """Where the code refers to a section of a document, that section exists."""
    references = [
        (match[0], match[1] or "", name(path))
        for path in SOURCES
        for match in re.findall(r'(docs/\w+\.md)(?:, "([^"]+)")?', path.read_text())
    ]
    assert references
    for document, heading, where in references:
        assert not heading or heading in sections(ROOT / document), where


# -- all of them


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links(path: Path) -> None:
    """A relative link leads to a file that is there, and to a heading that it has."""
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith("https://"):
            continue
        file, _, heading = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), target
        if heading:
            assert heading in {anchor(one) for one in sections(there)}, target


@pytest.mark.parametrize("path", [*DOCUMENTS, *SNIPPETS, ROOT / "config" / "acpd.toml"], ids=name)
def test_documents_speak_of_the_product(path: Path) -> None:
    """No document names a place, a list or a number of those who wrote it."""
    text = path.read_text()
    for word in ("/work", "shared/", "issue #", "TODO", "FIXME", "pypi.org", "registry.npmjs", "deb.debian"):
        assert word.lower() not in text.lower(), word
    assert not re.search(r"(?<![\w(\]])#\d+\b|\b(DESIGN|STYLE)\b", text)


@pytest.mark.parametrize("path", [*SOURCES, ROOT / "pyproject.toml", ROOT / "Makefile"], ids=name)
def test_sources_refer_to_what_is_there(path: Path) -> None:
    """No source names a folder or a document of those who wrote it."""
    assert not re.search(r"/work\b|\b(DESIGN|STYLE)\b", path.read_text())


def test_tables() -> None:
    """The rows of a table have as many cells as its head: else a renderer drops what is too much."""
    for path in DOCUMENTS:
        for table in re.findall(r"(?:^\|.*\|\n)+", path.read_text(), re.MULTILINE):
            cells = [len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row))) for row in table.splitlines()]
            assert len(set(cells)) == 1, (name(path), table.splitlines()[0])

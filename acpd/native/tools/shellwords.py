"""What an answer "always" may be about, for a command line of the shell.

"run git" must not allow `git status; rm -rf ~`. So the program is named only where one plain command is sure to be all that
runs; anything else is known by the whole line, word for word.
"""

from __future__ import annotations

import hashlib
import re
import shlex

_LONGEST = 400
"""Characters of a line that are part of a scope; the rest is, as its hash."""
_LONGEST_READ = 4000
_WORD = re.compile(r"[A-Za-z0-9_./+-]+")
_NOT_PLAIN = ("`", "$(", "$'", '$"', "${", "$[")
"""Commands within words, and quotes that shlex reads otherwise than the shell does."""
_OTHERS = """
. builtin bash case chroot command coproc dash do doas env eval exec fish flock for function if ionice ksh nice nohup
nsenter parallel script select setsid sh source ssh stdbuf strace su sudo then time timeout unshare until watch while
xargs zsh
""".split()  # noqa: SIM905  one a line would be long
"""They run what stands behind them: to allow them is to allow anything."""


def scope(command: str) -> str:
    """`run PROGRAM`, or `run: THE LINE`."""
    program = only_program(command)
    if program:
        return f"run {program}"
    if len(command) <= _LONGEST:
        return f"run: {command}"
    return f"run: {command[:_LONGEST]}... {hashlib.sha256(command.encode('utf-8', 'replace')).hexdigest()}"


def only_program(command: str) -> str:
    """The one program that this line runs; "" if that is not sure."""
    if len(command) > _LONGEST_READ or not command.isprintable() or any(part in command for part in _NOT_PLAIN):
        return ""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:  # quotes that are not closed
        return ""
    if not words or any(word and set(word) <= set("();<>|&") for word in words):
        return ""
    name = words[0]
    return (
        "" if not _WORD.fullmatch(name) or name.rpartition("/")[2] in _OTHERS or not command.lstrip().startswith(name) else name
    )

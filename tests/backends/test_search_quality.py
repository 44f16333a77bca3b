# ruff: noqa: RUF001 - letters of every script are what is tested
"""Search quality: forty queries over a generated corpus with known answers.

The corpus is a thousand documents of noise, and among them the planted ones below: what must be found, and beside it what is
nearly that and must not be. Expected: every planted answer among the first five hits, no near miss at all, and nothing
for the ten queries that have no answer.
"""

from __future__ import annotations

import random

import pytest

from acpd.storage.hits import Document
from acpd.storage.queries import Scope
from tests.backends.words import Words, at

PLANTED: dict[str, tuple[Scope, str, str]] = {
    # names
    "resolve": ("answer", "The bug is in resolveTerminalPath(), which forgets the cwd.", ""),
    "resolve-lower": ("tool", "grep resolveterminalpath", ""),
    "resolve-other": ("answer", "We resolve the path of the terminal later.", ""),
    "terminals": ("answer", "Both terminals share pathological behaviour.", ""),
    "retry": ("answer", "MAX_RETRY_COUNT is three by default.", ""),
    "retry-kebab": ("prompt", "please rename max-retry-count in the chart", ""),
    "retries": ("answer", "The maximum of retries counts.", ""),
    "http": ("answer", "class HTTPServerFactory(Protocol): ...", ""),
    "https": ("answer", "https serverless factories", ""),
    "utf": ("answer", "decode with utf8mb4 please", ""),
    "sha": ("tool", "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", ""),
    "uuid": ("answer", "session 01a22c91-e7c1-7d4e-8b12-3c9a5f0d6e77 is locked", ""),
    "generic": ("answer", "std::unique_ptr<Widget> owner;", ""),
    "flag": ("tool", "cargo test --no-fail-fast --workspace", ""),
    "error": ("tool", "ENOENT: no such file or directory, open '/etc/hosts.bak'", ""),
    "version": ("answer", "upgrade to v3.40.1 of the library", ""),
    "version-other": ("answer", "upgrade to v3.41.0 of the library", ""),
    # paths
    "login": ("tool", "Edit", "/repo/src/auth/login.py"),
    "login-js": ("tool", "Edit", "/repo/src/auth/login.js"),
    "login-test": ("tool", "Read", "/repo/tests/auth/test_login.py"),
    "login-text": ("answer", "I changed auth/login.py and its callers.", ""),
    "logout": ("tool", "Edit", "/repo/src/auth/logout.py"),
    "win": ("tool", "Write", r"C:\Users\dev\project\Main.java"),
    "link": ("prompt", "look at this", "file:///repo/docs/deploy-guide.md"),
    # words and phrases
    "quick": ("answer", "the quick brown fox jumps over the lazy dog", ""),
    "quick-apart": ("answer", "the brown dog is quick, the fox is lazy", ""),
    "docker": ("prompt", "Why does docker compose hang on startup?", ""),
    "docker-thought": ("thought", "docker compose may wait for the healthcheck", ""),
    "podman": ("answer", "podman composes on startup without hanging", ""),
    "migrate": ("prompt", "run the alembic migration for invoices", ""),
    "migrating": ("answer", "migrating invoices by hand", ""),
    # accents, case, width
    "strasse": ("answer", "Die Straße ist gesperrt.", ""),
    "cafe": ("answer", "Café Müller, naïve façade", ""),
    "wide": ("answer", "型番はＡＢＣ－１２３です", ""),
    "odos": ("answer", "Η ΟΔΟΣ είναι κλειστή", ""),
    "ezh": ("answer", "Ёжик в тумане", ""),
    # scripts without spaces
    "session-zh": ("answer", "会话存储必须可靠，崩溃后也能恢复。", ""),
    "session-zh-2": ("prompt", "把会话写入日志", ""),
    "dialogue-zh": ("answer", "对话框里说的话会丢失", ""),
    "data-ja": ("answer", "データベースの移行を確認してください", ""),
    "kana-ja": ("answer", "ﾃﾞｰﾀを保存", ""),
    "korean": ("answer", "세션을 저장하고 복구합니다", ""),
    "thai": ("answer", "บันทึกการสนทนาไว้ในฐานข้อมูล", ""),
}

QUERIES: list[tuple[str, set[str], set[str]]] = [
    ("terminal path", {"resolve", "resolve-other"}, {"terminals"}),
    ("resolveTerminalPath", {"resolve", "resolve-lower"}, {"resolve-other", "terminals"}),
    ("resolve_terminal_path", {"resolve", "resolve-lower"}, {"resolve-other"}),
    ("resolveterminalpath", {"resolve", "resolve-lower"}, {"resolve-other"}),
    ('"terminal path"', {"resolve"}, {"resolve-other", "resolve-lower"}),
    ("maxRetryCount", {"retry", "retry-kebab"}, {"retries"}),
    ("max_retry_count", {"retry", "retry-kebab"}, {"retries"}),
    ("http server", {"http"}, {"https"}),
    ("HTTPServer*", {"http"}, {"https"}),
    ("utf8mb4", {"utf"}, set()),
    ("9f86d081884c*", {"sha"}, set()),
    ("01a22c91-e7c1*", {"uuid"}, set()),
    ("unique_ptr", {"generic"}, set()),
    ("fail-fast", {"flag"}, set()),
    ('"--no-fail-fast"', {"flag"}, set()),
    ("ENOENT hosts.bak", {"error"}, set()),
    ("v3.40.1", {"version"}, {"version-other"}),
    ("login.py", {"login", "login-text", "login-test"}, {"login-js", "logout"}),
    ("path:auth/login", {"login", "login-js"}, {"login-text", "login-test", "logout"}),
    ("src/auth/login.py", {"login"}, {"login-js", "login-text", "login-test"}),
    ("path:main.java", {"win"}, set()),
    ("prompt:deploy-guide.md", {"link"}, set()),
    ('"quick brown fox"', {"quick"}, {"quick-apart"}),
    ("prompt:docker compose", {"docker"}, {"docker-thought", "podman"}),
    ("docker -prompt:docker", {"docker-thought"}, {"docker", "podman"}),
    ("STRASSE gesperrt", {"strasse"}, set()),
    ("cafe muller", {"cafe"}, set()),
    ("会话", {"session-zh", "session-zh-2"}, {"dialogue-zh"}),
    ("崩溃 恢复", {"session-zh"}, {"session-zh-2", "dialogue-zh"}),
    ("データ", {"data-ja", "kana-ja"}, set()),
    # no answer
    ("terminal pathology", set(), {"terminals", "resolve"}),
    ("path terminalResolve", set(), {"resolve"}),
    ('"brown quick"', set(), {"quick", "quick-apart"}),
    ("tool:docker", set(), {"docker", "docker-thought"}),
    ("auth/login.rb", set(), {"login", "login-js", "login-text"}),
    ("path:docker", set(), {"docker"}),
    ("存会", set(), {"session-zh", "session-zh-2"}),
    ("migration -invoices", set(), {"migrate", "migrating"}),
    ("v3.40.2", set(), {"version", "version-other"}),
    ("kubernetes helm", set(), set()),
]
NOISE = [
    "the", "parser", "keeps", "a", "buffer", "of", "lines", "until", "one", "is", "whole", "and", "then", "the",
    "reader", "waits", "for", "its", "turn", "while", "tests", "run", "in", "order", "file", "path", "terminal",
    "session", "login", "docker", "fox", "data", "server", "retry", "count", "error", "open", "version", "library",
    "test", "src", "auth", "edit", "read",
]  # fmt: skip


@pytest.fixture(scope="module")
def corpus() -> Words:
    """Noise first and last, the planted documents at random places between; the same each time."""
    chance = random.Random(5)
    words = Words()
    places = dict(zip(sorted(chance.sample(range(200, 900), len(PLANTED))), PLANTED, strict=True))
    batch: list[Document] = []
    for number in range(1, 1001):
        if name := places.get(number):
            scope, text, paths = PLANTED[name]
        else:
            name, scope, paths = f"noise {number}", chance.choice(("prompt", "answer", "thought", "tool")), ""
            text = " ".join(
                f"{chance.choice(NOISE)}{chance.choice(('x', 'y', 'z', 'w'))}" for _ in range(chance.randint(3, 60))
            )
        batch.append(Document(entry=name, seq=number, at=at(number), scope=scope, text=text, paths=paths))
    for first in range(0, 1000, 50):
        words.put(batch[first : first + 50], f"s{first % 7}")
    return words


def test_the_list_is_what_it_says() -> None:
    """Forty queries, ten without an answer, and near misses for most."""
    assert (40, 10) == (len(QUERIES), sum(not expected for _, expected, _ in QUERIES))
    assert all(expected | forbidden <= set(PLANTED) for _, expected, forbidden in QUERIES)
    assert not [text for text, expected, forbidden in QUERIES if expected & forbidden]


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize(("text", "expected", "forbidden"), QUERIES, ids=[text for text, _, _ in QUERIES])
def test_quality(corpus: Words, text: str, expected: set[str], forbidden: set[str], best: bool) -> None:
    """Each answer is among the first five, no near miss is found, and what has no answer has no hit."""
    found = corpus.found(text, limit=100, best=best)
    assert expected <= set(found[:5])
    assert not forbidden & set(found)
    assert bool(expected) == bool(found)

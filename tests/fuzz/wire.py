"""Through real processes: junk into acpd's stdin, and junk from an agent into acpd."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from tests.fuzz import lines
from tests.support import commands, proc, store
from tests.support.client import Client

NOISY = Path(__file__).with_name("noisy_agent.py")
TO_AGENT = [method for method in lines.METHODS if method not in {"authenticate", "logout"}]


def into_acpd(rng: random.Random, home: Path, seconds: float) -> int:
    """Lines of any quality into stdin: never an exit, at most one answer an id, only valid output. Gives the number sent."""
    end = time.monotonic() + seconds
    sent = 0
    mark = proc.new_mark()
    with Client(commands.wrapping("good_agent"), home, mark=mark) as client:
        client.initialize()
        sessions = [client.new(home)]
        written = b""
        while time.monotonic() < end:
            batch = b"\n".join(junk(rng, sessions) for _ in range(rng.randrange(1, 40))) + b"\n"
            lines.save(Path(".fuzz"), "last-batch", batch)
            client.send_bytes(batch)
            written += batch
            sent += batch.count(b"\n")
            client.call("session/list", {}, within=60)
            if sent % 7 == 0:
                sessions = [*sessions[-3:], client.new(home)]
            if len(written) > 1 << 20:
                check_answers(client, written)
                written = b""
        check_answers(client, written)
        client.close_stdin()
        client.wait_exit(60)
    proc.assert_none_left(mark)
    store.check_store(home)
    return sent


def junk(rng: random.Random, sessions: list[str]) -> bytes:
    pick = rng.random()
    if pick < 0.3:
        return lines.mutate(rng, rng.choice(lines.seeds()))
    if pick < 0.6:
        return lines.message(rng, sessions, TO_AGENT)
    if pick < 0.95:
        return lines.mutate(rng, lines.message(rng, sessions, TO_AGENT))
    return rng.randbytes(rng.randrange(500))


def check_answers(client: Client, written: bytes) -> None:
    """No id has more answers than there were lines that could have carried it."""
    allowed: dict[str, int] = {}
    for line in written.split(b"\n"):
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(message, dict) and "id" in message:
            key = json.dumps(message["id"])
            allowed[key] = allowed.get(key, 0) + 1
    for sent in client.sent:
        allowed[json.dumps(sent.id)] = allowed.get(json.dumps(sent.id), 0) + 1
    got: dict[str, int] = {}
    for seen in client.lines:
        if seen.is_answer and seen.message["id"] is not None:
            key = json.dumps(seen.message["id"])
            got[key] = got.get(key, 0) + 1
    more = {key: count for key, count in got.items() if count > allowed.get(key, 0)}
    assert {} == more, f"answered more often than asked: {more}"
    client.lines.clear()
    client.sent.clear()


def from_agent(rng: random.Random, home: Path, seconds: float) -> int:
    """An agent that talks nonsense: each prompt is answered once, nothing invalid reaches the client, the log stays whole."""
    end = time.monotonic() + seconds
    prompts = 0
    mark = proc.new_mark()
    command = commands.acpd("run", "--", sys.executable, str(NOISY))
    with Client(command, home, mark=mark, policy=None) as client:
        client.initialize()
        session = client.new(home)
        while time.monotonic() < end:
            prompts += 1
            seed = rng.randrange(10**9)
            ident = client.start_prompt(session, f"fuzz {seed} {rng.randrange(1, 200)}")
            answer = client.answer(ident, within=60).message
            assert "result" in answer or "exit code 7" in answer["error"]["message"], f"seed {seed}: {answer}"
            assert 1 == len(client.answers(ident)), f"seed {seed}"
            if prompts % 20 == 0:
                client.load(session, home)
            assert [] == client.violations, f"seed {seed}: {client.violations[:3]}"
        client.close_stdin()
        client.wait_exit(60)
    proc.assert_none_left(mark)
    store.check_store(home)
    return prompts

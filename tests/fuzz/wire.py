"""Through real processes: junk into acpd's stdin, and junk from an agent into acpd."""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections import Counter
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
    with Client(commands.wrapping("good_agent"), home, mark=mark, id_prefix="own-") as client:
        client.initialize()
        sessions = [client.new(home)]
        tally = Tally()
        while time.monotonic() < end:
            batch = b"\n".join(junk(rng, sessions) for _ in range(rng.randrange(1, 40))) + b"\n"
            lines.save(Path(".fuzz"), "last-batch", batch)
            client.send_bytes(batch)
            tally.wrote(batch)
            sent += batch.count(b"\n")
            client.call("session/list", {}, within=60)
            if sent % 7 == 0:
                sessions = [*sessions[-3:], client.new(home)]
            tally.check(client)
        client.close_stdin()
        client.wait_exit(60)
        tally.check(client)
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


class Tally:
    """How often each id may be answered, and was. Counts over the whole run: an answer may come late."""

    def __init__(self) -> None:
        self._allowed: Counter[str] = Counter()
        self._got: Counter[str] = Counter()

    def wrote(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(message, dict) and "id" in message:
                self._allowed[json.dumps(message["id"])] += 1

    def check(self, client: Client) -> None:
        """No id has more answers than there were lines that could have carried it. The lines are dropped then."""
        self._allowed.update(json.dumps(sent.id) for sent in client.sent)
        self._got.update(json.dumps(line.message["id"]) for line in client.lines if line.is_answer)
        more = {key: count for key, count in self._got.items() if count > self._allowed[key] and key != "null"}
        assert {} == more, f"answered more often than asked: {more}"
        client.lines.clear()
        client.sent.clear()
        client.violations[:] = [problem for problem in client.violations if not self._ambiguous(problem)]
        assert [] == client.violations, "\n".join(client.violations[:5])

    def _ambiguous(self, problem: str) -> bool:
        """Whether nobody can tell which request was answered: its id was used twice, or is null as an unreadable line's."""
        found = re.search(r'"jsonrpc":"2.0","id":(null|-?\d+|"[^"]*"),"(?:result|error)"', problem)
        return found is not None and (found[1] == "null" or self._allowed[json.dumps(json.loads(found[1]))] > 1)


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
                client.load(session, home, within=60)
            if prompts % 200 == 0:  # else a load soon takes longer to check than its deadline
                client.call("session/close", {"sessionId": session})
                session = client.new(home)
            assert [] == client.violations, f"seed {seed}: {client.violations[:3]}"
        client.close_stdin()
        client.wait_exit(60)
    proc.assert_none_left(mark)
    store.check_store(home)
    return prompts

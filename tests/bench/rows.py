"""The rows of the table of targets: how each is measured, what was reached.

Rows 1-6 and 12 are measured twice, each time beside their anchors: in one process (`--standalone`), by the targets of the first
slice, and by shim and daemon, by the daemon's.

Rows 1, 2, 4-6, 9, 12, 16 run with `sync = "process"`, rows 3 and 13 with `"power"`. A ratio is taken between figures of one
run.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import NamedTuple

from tests.bench import big, stall, starting, words
from tests.bench.kit import Bench, find, limit_agent, ts_sdk
from tests.support.paths import ROOT

HERE = ROOT / "tests/bench"


class Result(NamedTuple):
    """One line of the table. `ok` None: a figure without a target."""

    row: str
    what: str
    target: str
    reached: str
    ok: bool | None


def _judged(row: str, what: str, limit: float, value: float, text: str, unit: str, *, least: bool = False) -> Result:
    ok = value >= limit if least else value <= limit
    return Result(row, what, f"{'>=' if least else '<='} {limit:g}{unit}", text, ok)


BY = ", by shim and daemon"


def startup(bench: Bench) -> list[Result]:
    found: list[Result] = []
    for alone, limit in ((True, 2.0), (False, 0.25)):
        rounds = str(bench.size(15, 5))
        rows = bench.kit("startup", "startup", "--rounds", rounds, agent=["sh", str(HERE / "instant_agent.sh")], alone=alone)
        row = find(rows, "target", "acpd")
        ratio = float(row["x_limit"])
        text = f"{ratio:.2f}x ({row['ready_ms']:.0f} ms)"
        what = "cold start" if alone else "shim to a running daemon,"
        found.append(_judged("1", f"{what} to session/new, agent's start not counted", limit, ratio, text, "x limit"))
    return found


def _relay(bench: Bench, *, alone: bool = True) -> dict[str, float]:
    options = ["--pin", "same", "--rounds", str(bench.size(5, 2)), "--updates", str(bench.size(100_000, 20_000))]
    rows = bench.kit("relay", "relay", *options, "--prompts", str(bench.size(2000, 500)), agent=["{agent...}"], alone=alone)
    row = find(rows, "design", "agent: acpd")
    return {key: float(row[key]) for key in ("hop_added_us", "cpu_us", "hop_p50_us", "of_direct")}


def roundtrip(bench: Bench) -> list[Result]:
    found: list[Result] = []
    for by, limit in (("", 60), (BY, 25)):
        row = _relay(bench, alone=not by)
        text = f"+{row['hop_added_us']:.0f} us (p50 {row['hop_p50_us']:.0f})"
        what = f"round trip{by}, stored before sent: added p50, pinned"
        found.append(_judged("2", what, limit, row["hop_added_us"], text, " us"))
    return found


def cpu(bench: Bench) -> list[Result]:
    row = _relay(bench)
    updates = bench.size(100_000, 20_000)
    samples: list[stall.Used] = []
    for _ in range(bench.size(5, 2)):  # a daemon each: it saves a stream a second after its end, when the next one would run
        with bench.daemon("cpu", "process") as daemon:
            samples += [stall.used(bench.wrap(limit_agent()), bench.env("cpu", "process", alone=False), updates, daemon)]
    shim, serve, rate = (statistics.median(each) for each in zip(*samples, strict=True))
    text = f"{shim + serve:.1f} us (shim {shim:.1f}; {rate / 1000:.0f}k/s)"
    return [
        _judged("5", "CPU for each relayed and stored update", 10, row["cpu_us"], f"{row['cpu_us']:.1f} us", " us"),
        _judged("5", f"CPU for each relayed and stored update{BY}", 2.5, shim + serve, text, " us"),
    ]


def stream(bench: Bench) -> list[Result]:
    options = ["--rounds", str(bench.size(5, 2)), "--updates", str(bench.size(200_000, 20_000)), "--anchors", bench.anchors()]
    found: list[Result] = []
    for by, limits in (("", {"Python": 5}), (BY, {"Python": 20, "TS": 6})):
        rows = bench.kit("stream", "stream", *options, agent=limit_agent(), alone=not by)
        own = find(rows, "target", "acpd")
        for sdk, limit in limits.items():
            if sdk == "TS" and ts_sdk() is None:
                continue
            ratio = own["of_limit"] / find(rows, "target", {"Python": "pysdk", "TS": "tssdk"}[sdk])["of_limit"]
            text = f"{ratio:.1f}x ({own['updates_per_s'] / 1000:.0f}k/s, {own['of_limit']:.2f} of limit)"
            what = f"stream{by}, every update in the log before it is sent"
            found.append(_judged("4", what, limit, ratio, text, f"x {sdk} SDK", least=True))
    return found


def in_flight(bench: Bench) -> list[Result]:
    options = ["--rounds", str(bench.size(5, 2)), "--prompts", str(bench.size(600, 200))]
    found: list[Result] = []
    for by, limit in (("", 2.0), (BY, 2.5)):
        rows = bench.kit("append", "append", *options, agent=limit_agent(), sync="power", alone=not by)
        row = find(rows, "design", "acpd, 64 in flight")
        ratio = float(row["x_fdatasync"])
        text = f"{ratio:.1f}x ({row['entries_per_s']:.0f} prompts/s)"
        what = f"prompts/s{by}, 64 sessions in flight, power-safe"
        found.append(_judged("3", what, limit, ratio, text, "x fdatasync each", least=True))
    return found


def replay(bench: Bench) -> list[Result]:
    count = bench.size(200_000, 20_000)
    options = ["--rounds", str(bench.size(3, 1)), "--updates", str(count), "--anchors", bench.anchors(), "--timeout", "300"]
    options += ["--record", "--record-prompt", "/mixed {updates} {size}"]
    agent = [sys.executable, "-I", "-S", str(HERE / "mixed_agent.py")]
    found: list[Result] = []
    for by, limits, soon in (("", {"pysdk": 12}, 10), (BY, {"pysdk": 35, "tssdk": 12}, 3)):
        rows = bench.kit("replay", "replay", *options, agent=agent, alone=not by)
        own = find(rows, "target", "acpd")
        for sdk, limit in limits.items():
            if sdk == "tssdk" and ts_sdk() is None:
                continue
            ratio = own["updates_per_s"] / find(rows, "target", sdk)["updates_per_s"]
            text = f"{ratio:.1f}x ({own['updates_per_s'] / 1000:.0f}k/s)"
            what = f"session/load{by} of {count:,} updates, as stored"
            found.append(_judged("6", what, limit, ratio, text, f"x {'Python' if sdk == 'pysdk' else 'TS'} SDK", least=True))
        first = float(own["first_ms"])
        found.append(_judged("6", f"its first update{by}", soon, first, f"{first:.1f} ms", " ms"))
    return found


def tree(bench: Bench) -> list[Result]:
    count, rounds = bench.size(200_000, 50_000), bench.size(5, 3)
    log = bench.own("write_log", str(bench.home("tree")), count)
    samples = [bench.own("open_log", str(bench.home("tree"))) for _ in range(rounds)]
    anchors = [bench.own("json_log", str(bench.home("tree"))) for _ in range(rounds)]
    ratio = statistics.median(sample["all"] / anchor["all"] for sample, anchor in zip(samples, anchors, strict=True))
    seconds, last, indexed = (statistics.median(sample[key] for sample in samples) for key in ("all", "last", "indexed"))
    text = f"{ratio:.2f}x ({seconds:.2f} s, {log['megabytes']:.0f} MB)"
    return [
        _judged("7", f"open a log of {count:,} entries: all", 0.3, ratio, text, "x json.loads"),
        _judged("7", "its last 200 entries", 15, indexed * 1e3, f"{indexed * 1e3:.1f} ms", " ms"),
        Result("7", "the same when its index file is gone", "", f"{last * 1e3:.0f} ms", None),
    ]


def _index(bench: Bench) -> tuple[dict[str, float], float, float]:
    """Page by page over a full catalog; the anchor's cost of an update at 100 and at the full size."""
    count = bench.size(100_000, 20_000)
    if "index" not in bench.seen:
        bench.own("fill_catalog", str(bench.home("index")), count)
    options = ["--sessions", f"100,{count}", "--rounds", str(bench.size(3, 1))]
    rows = bench.kit("index", "index", *options, agent=["sh", str(HERE / "instant_agent.sh")])
    design = "SQLite WAL NORMAL, keyset pages"
    small, full = (float(find(rows, "design", design, sessions=size)["update_p50_us"]) for size in (100, count))
    return find(rows, "design", "acpd", sessions=count), small, full


def catalog(bench: Bench) -> list[Result]:
    count = bench.size(100_000, 20_000)
    small, full = (bench.own("catalog_updates", str(bench.home(f"catalog-{size}")), size) for size in (100, count))
    _, _, anchor = _index(bench)
    ratio, growth = full["p50_us"] / anchor, full["p50_us"] / small["p50_us"]
    text = f"{ratio:.1f}x ({full['p50_us']:.0f} us; {full['together_us']:.0f} us each of 64 at once)"
    return [
        _judged("8", "catalog update", 3, ratio, text, "x SQLite NORMAL"),
        _judged("8", f"its cost at {count:,} / at 100", 3, growth, f"{growth:.2f}", ""),
    ]


def listing(bench: Bench) -> list[Result]:
    row, _, _ = _index(bench)
    seconds = row["all_pages_ms"] / 1e3
    text = f"{seconds:.2f} s (page p50 {row['page_p50_us']:.0f} us)"
    return [_judged("9", f"list all of {int(row['sessions']):,} sessions by pages", 2, seconds, text, " s")]


def idle(bench: Bench) -> list[Result]:
    found = bench.own("idle_sessions", str(bench.home("idle")), bench.size(2000, 500))
    kib = found["bytes"] / 1024
    return [_judged("10", "idle session in memory", 4, kib, f"{kib:.1f} KiB", " KiB")]


def search(bench: Bench) -> list[Result]:
    megabytes = bench.size(200, 20)
    home = str(bench.home("search"))
    filled = bench.own("fill_words", home, megabytes)
    saved = bench.own("turn_words", home)
    command = bench.wrap(["sh", str(HERE / "instant_agent.sh")])
    found = words.measure(command, bench.env("search", "process"), words.Vocabulary().queries(), bench.size(100, 20))
    kinds = ", ".join(f"{kind} {each:.2f}" for kind, each in found.each.items())
    cost = saved["index_us"] - saved["put_us"]
    built = f"{filled['seconds']:.0f} s, {filled['seconds'] / filled['documents'] * 1e6:.0f} us a document of 1 KB"
    built += f"; p99 of a batch of {words.BATCH}: {filled['batch_ms']:.0f} ms"
    return [
        _judged(
            "11",
            f"search over {megabytes} MB, through the protocol: p50",
            1,
            found.p50,
            f"{found.p50:.2f} ms (CPU {found.cpu:.2f})",
            " ms",
        ),
        _judged("11", "its p99", 10, found.p99, f"{found.p99:.1f} ms", " ms"),
        Result("11", "median by kind of query, ms", "", kinds, None),
        _judged("11", "its index, beside the texts", 0.4, filled["of_text"], f"{filled['of_text']:.2f}x", "x text"),
        Result("11", "building it", "", built, None),
        Result("11", "what a turn's save takes more (five documents)", "", f"{cost:.0f} us", None),
    ]


def stalled(bench: Bench) -> list[Result]:
    megabytes = bench.size(200, 50)
    alone = stall.measure(bench.wrap(limit_agent()), bench.env("stall", "process"), megabytes)
    with bench.daemon("stall-daemon", "process") as pid:
        env = bench.env("stall-daemon", "process", alone=False)
        stall.measure(bench.wrap(limit_agent()), env, 20, pid)  # what only a daemon's first client costs is no growth
        both = stall.measure(bench.wrap(limit_agent()), env, megabytes, pid)
    found: list[Result] = []
    for by, limit, each in (("", 16, alone), (BY, 2, both)):
        text = f"{each.grown_mib:.1f} MiB, then all {each.updates:,} updates"
        what = f"a client that stops reading {megabytes} MB{by}: growth of RSS"
        found.append(_judged("12", what, limit, each.grown_mib, text, " MiB"))
    return found


def power(bench: Bench) -> list[Result]:
    ratios: list[float] = []
    p50 = 0.0
    for number in range(bench.size(5, 2)):
        sync = bench.own("fdatasync", str(bench.folder), 400)["p50_us"]
        options = ["--pin", "same", "--rounds", "1", "--in-flight", "1", "--anchors", "none", "--prompts", "400"]
        rows = bench.kit(f"power-{number}", "roundtrip", *options, agent=limit_agent(), sync="power")
        p50 = float(find(rows, "target", "acpd", in_flight=1)["p50_us"])
        ratios.append(p50 / (2 * sync))
    ratio = statistics.median(ratios)
    return [_judged("13", "round trip, power-safe: p50", 2.5, ratio, f"{ratio:.2f}x (p50 {p50:.0f} us)", "x two fdatasync")]


def gigabyte(bench: Bench) -> list[Result]:
    count, rounds = bench.size(1_000_000, 50_000), bench.size(5, 2)
    log = bench.own("write_big", str(bench.home("big")), count)
    env = bench.env("big", "process")
    session = big.listed(bench.acpd, env)
    agent = bench.wrap(["sh", str(HERE / "instant_agent.sh")])
    resumed = big.median([big.resume(agent, env, session, "/src") for _ in range(rounds)])
    shown = big.median([big.run([bench.acpd, "show", session, "--last", "20"], env) for _ in range(rounds)])
    checked = big.run([bench.acpd, "fsck", session], env)
    what = f"{count:,} entries, {log['megabytes']:.0f} MB: "
    memory = max(resumed.mib, shown.mib)
    return [
        _judged("16", f"{what}session/resume", 100, resumed.seconds * 1e3, f"{resumed.seconds * 1e3:.0f} ms", " ms"),
        _judged("16", "acpd show --last 20, with its start", 300, shown.seconds * 1e3, f"{shown.seconds * 1e3:.0f} ms", " ms"),
        _judged("16", "most memory of these", 200, memory, f"{memory:.0f} MiB", " MiB"),
        Result("16", "acpd fsck", "", f"{checked.seconds:.1f} s, {checked.mib:.0f} MiB", None),
    ]


def append(bench: Bench) -> list[Result]:
    samples = [bench.own("appends", str(bench.home(f"append-{number}"))) for number in range(bench.size(7, 3))]
    own, bare = (statistics.median(sample[key] for sample in samples) for key in ("journal_us", "write_us"))
    return [
        Result(
            "append", "1 KiB entry into the journal, append and flush", "", f"{own:.1f} us (bare write(2): {bare:.1f})", None
        )
    ]


def start(bench: Bench) -> list[Result]:
    """Starts on a big store and on a small one by turns. Each start leaves a session that was never prompted."""
    count = bench.size(100_000, 5_000)
    command = bench.wrap(["sh", str(HERE / "instant_agent.sh")])
    homes = [f"start-{size}" for size in (100, count)]
    made = [bench.own("fill_sessions", str(bench.home(name)), size) for name, size in zip(homes, (100, count), strict=True)]
    starts = [[starting.start(command, bench.env(name, "process")) for name in homes] for _ in range(bench.size(11, 5))]
    found: list[Result] = []
    for place, what in enumerate(("session/new", "its first session/list")):
        small, big = (statistics.median(pair[side][place] for pair in starts) for side in (0, 1))
        text = f"+{big - small:.0f} ms ({big:.0f} ms)"
        found.append(_judged("15", f"start with {count:,} sessions against 100: to {what}", 50, big - small, text, " ms"))
    seconds = made[1]["seconds"]
    return [*found, Result("15", f"making the catalog of {count:,} logs anew", "", f"{seconds:.1f} s", None)]


ROWS: dict[str, Callable[[Bench], list[Result]]] = {
    "1": startup,
    "2": roundtrip,
    "3": in_flight,
    "4": stream,
    "5": cpu,
    "6": replay,
    "7": tree,
    "8": catalog,
    "9": listing,
    "10": idle,
    "11": search,
    "12": stalled,
    "13": power,
    "15": start,
    "16": gigabyte,
    "append": append,
}


def table(results: list[Result]) -> str:
    """Columns: row, what, target, reached, ok."""
    head = ("row", "what", "target", "reached", "ok")
    lines = [head, *((*each[:4], "" if each.ok is None else "yes" if each.ok else "NO") for each in results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines]
    return "\n".join([shown[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *shown[1:]])

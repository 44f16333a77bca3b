"""fetch: what it gives, and where it does not go."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from acpd.native.tools import addresses, fetching, pages
from tests.native.tools.bench import Bench, Json

PAGE = b"""<!DOCTYPE html><html><head><title>A &amp; B</title><style>x{}</style></head><body><script>var no;</script>
<h1>Heading</h1><p>Some <b>bold</b>
text, <a href="https://example.com/x">a link</a>.</p><ul><li>one<li>two</ul><pre>  kept
   as is</pre></body></html>"""
TEXT = "Title: A & B\n\n# Heading\n\nSome bold text, a link (https://example.com/x).\n\n- one\n- two\n\n  kept\n   as is"


class Site(NamedTuple):
    """A server on this machine. `pages`: raw answers by path; `heard`: the heads of its requests."""

    port: int
    pages: dict[str, bytes]
    heard: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def ok(body: bytes, kind: str = "text/html; charset=utf-8", more: str = "") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
    return head.encode() + body


def moved(where: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    sites: dict[str, bytes] = {}
    heard: list[str] = []
    open_ones: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        heard.append(head)
        answer = sites.get(head.split()[1], b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnone")
        writer.write(answer)
        open_ones.append(writer)
        if answer:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield Site(server.sockets[0].getsockname()[1], sites, heard)
        for writer in open_ones:
            writer.close()


async def test_a_page_is_text(work: Bench, site: Site) -> None:
    """An HTML page is given as text; the user is asked for its host, once if they say "always"."""
    site.pages["/a"] = ok(PAGE)
    work.client.decide = lambda _: "always"
    for _ in range(2):
        output = await work.call("fetch", url=f"{site.url}/a")
        assert output.text == f"{site.url}/a: HTTP 200, text/html, {len(PAGE)} bytes\n\n{TEXT}"
    assert len(work.client.asked) == 1
    shown = work.shown()
    assert (shown["kind"], shown["title"], shown["status"]) == ("fetch", f"Fetch {site.url}/a", "completed")
    assert f"Host: 127.0.0.1:{site.port}\r\n" in site.heard[0]


async def test_a_private_address_is_said_to_be_one(work: Bench, site: Site) -> None:
    """The question says that the host is on this machine or a private network; refused, nothing is sent there."""
    work.client.decide = lambda _: "no"
    assert (await work.call("fetch", url=f"http://localhost:{site.port}/")).failed
    assert site.heard == []
    assert "private network" in str(work.client.asked[0]["options"]) + str(work.client.asked[0]["toolCall"])


async def test_a_name_that_leads_to_a_private_address(work: Bench, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public name with a private address needs a permission of its own; then the request goes to that very address."""
    site.pages["/"] = ok(b"inner", "text/plain")

    async def resolved(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(fetching, "resolved", resolved)
    work.client.decide = lambda said: "yes" if len(work.client.asked) == 1 else "no"
    url = f"http://innocent.example:{site.port}/"
    output = await work.call("fetch", url=url)
    assert output.failed
    assert "private network" in output.text
    assert site.heard == []
    work.client.decide = lambda _: "yes"
    assert "inner" in (await work.call("fetch", url=url)).text
    assert f"Host: innocent.example:{site.port}\r\n" in site.heard[0]


async def test_the_users_time_is_not_the_servers(work: Bench, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may think about the private network for longer than a server has; the server has its time all the same."""
    site.pages.update({"/": ok(b"inner", "text/plain"), "/deaf": b""})

    async def resolved(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    def decide(_: Json) -> str:
        if len(work.client.asked) == 2:
            time.sleep(1.2)  # in a thread: the user thinks
        return "yes"

    monkeypatch.setattr(fetching, "resolved", resolved)
    monkeypatch.setattr(fetching, "SECONDS", 1.0)
    work.client.decide = decide
    assert "inner" in (await work.call("fetch", url=f"http://innocent.example:{site.port}/")).text
    assert "did not answer" in (await work.call("fetch", url=f"http://innocent.example:{site.port}/deaf")).text
    assert 4 == len(work.client.asked)


async def test_redirects(work: Bench, site: Site) -> None:
    """Within the host redirects are followed, not for ever; to another host they are told, and nothing is sent there."""
    site.pages.update({"/a": moved("/b"), "/b": ok(b"there", "text/plain"), "/loop": moved("/loop")})
    site.pages.update({"/out": moved("http://169.254.169.254/latest/meta-data"), "/file": moved("file:///etc/passwd")})
    assert "there" in (await work.call("fetch", url=f"{site.url}/a")).text
    assert "More than 5 redirects" in (await work.call("fetch", url=f"{site.url}/loop")).text
    output = await work.call("fetch", url=f"{site.url}/out")
    assert output.failed
    assert "http://169.254.169.254/latest/meta-data" in output.text
    assert (await work.call("fetch", url=f"{site.url}/file")).failed


async def test_sizes_and_times_are_bounded(work: Bench, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without end, a bomb and a server that says nothing cost no more than the limits."""
    monkeypatch.setattr(fetching, "MAX_BODY", 200_000)
    site.pages["/big"] = ok(b"a" * 1_000_000, "text/plain")
    site.pages["/bomb"] = ok(gzip.compress(b"b" * 50_000_000), "text/plain", "Content-Encoding: gzip\r\n")
    for path in ("/big", "/bomb"):
        output = await work.call("fetch", url=site.url + path)
        assert "200000 bytes" in output.text
        assert "[160000 more characters: fetch it with offset=40000.]" in output.text
    assert "[120000 more" in (await work.call("fetch", url=f"{site.url}/big", offset=40_000)).text
    monkeypatch.setattr(fetching, "SECONDS", 0.3)
    site.pages["/deaf"] = b""
    output = await work.call("fetch", url=f"{site.url}/deaf")
    assert "did not answer" in output.text


async def test_a_proxy_of_the_environment(work: Bench, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment has a proxy it gets the request, name and all; NO_PROXY is kept, and secrets of it are not told."""
    site.pages["http://example.com/x"] = ok(b"by the proxy", "text/plain")
    site.pages["/y"] = ok(b"direct", "text/plain")
    monkeypatch.setenv("http_proxy", f"http://me:canary@127.0.0.1:{site.port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert "by the proxy" in (await work.call("fetch", url="http://example.com/x")).text
    assert "direct" in (await work.call("fetch", url=f"{site.url}/y")).text
    monkeypatch.setenv("http_proxy", "nonsense://me:canary@127.0.0.1")
    output = await work.call("fetch", url="http://example.com/x")
    assert output.failed
    assert "canary" not in output.text + str(work.client.updates)


async def test_other_answers(work: Bench, site: Site) -> None:
    """An error of the server, a binary file, an image and an old charset are each told as what they are."""
    site.pages["/bin"] = ok(b"PK\0\0", "application/zip")
    site.pages["/image"] = ok(b"\x89PNG\r\n\x1a\nx", "image/png")
    site.pages["/old"] = ok("caf\u00e9".encode("latin-1"), "text/plain; charset=iso-8859-1")
    site.pages["/meta"] = ok(b"<html><meta charset=gbk><p>" + "\u4f60".encode("gbk"), "text/html")
    site.pages["/odd"] = ok(b"abc", "text/plain; charset=punycode")
    output = await work.call("fetch", url=f"{site.url}/none")
    assert output.failed
    assert "HTTP 404" in output.text
    assert "no text" in (await work.call("fetch", url=f"{site.url}/bin")).text
    assert (await work.call("fetch", url=f"{site.url}/image")).images == ((b"\x89PNG\r\n\x1a\nx", "image/png"),)
    assert (await work.call("fetch", url=f"{site.url}/old")).text.endswith("caf\u00e9")
    assert (await work.call("fetch", url=f"{site.url}/meta")).text.endswith("\u4f60")
    assert (await work.call("fetch", url=f"{site.url}/odd")).text.endswith("abc")
    assert "could not be fetched" in (await work.call("fetch", url="http://127.0.0.1:1/")).text


@pytest.mark.parametrize(
    "url",
    [
        "http://{}/a\tb", "http://{}/a b", "http://{}/\r\nX: y", "http://{}/\x7f", "http://{}\t/", "http:///", "http://[::1/",
        "http://\u2460\u2461.\u24ea.\u24ea.\u2460/", "http://\u2603.test/", "http://a\0b/", "http://[v1.a]/",
        "http://x:99999999/", "http://{}\\@x/",
        "http://%00/", "http://a..b/", "http://xn--a.test/", "http://\u202e{}/", "http://{}/" + "b" * 3900,
    ],
)  # fmt: skip
async def test_odd_urls(work: Bench, site: Site, url: str) -> None:
    """What is no URL, or leads nowhere, is an answer that says so, and no fault of ours."""
    output = await work.call("fetch", url=url.replace("{}", site.url.removeprefix("http://")))
    assert output.failed
    assert "internal error" not in output.text
    assert "b" * 3900 in url or not site.heard


async def test_odd_redirects(work: Bench, site: Site) -> None:
    """A page that has moved to what is no URL is told as that."""
    for number, where in enumerate(
        ["http://[::1", "http://x:99999999/", "//", "http://\u2603.test/".encode().decode("latin-1")]
    ):
        site.pages[f"/{number}"] = moved(where)
        output = await work.call("fetch", url=f"{site.url}/{number}")
        assert output.failed
        assert "internal error" not in output.text


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "::1",
        "::", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
        "255.255.255.255",
    ],
)  # fmt: skip
def test_addresses_that_are_private(address: str) -> None:
    """What is not of the public internet is private in each of its forms."""
    assert addresses.private(address)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST.", "a.localhost", "nas.local", "router", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "[::1]"],
)
def test_hosts_that_are_private(host: str) -> None:
    """A host that is private by its name is known without a look-up."""
    assert addresses.private_name(host)


@pytest.mark.parametrize("host", ["example.com", "8.8.8.8", "2606:4700::1111", "1.example.com", "localhost.example.com"])
def test_hosts_that_are_public(host: str) -> None:
    """A public host is not asked for as a private one."""
    assert not addresses.private_name(host)


@pytest.mark.parametrize(
    "part", ["<", "<!--", "<a ", "</", "&#", "<div>", "<![CDATA[", "<a href='", "<!x", "<?", "<script>", "&amp"]
)
def test_hostile_pages_end(part: str) -> None:
    """Much of what confuses parsers is read in a time that is not its square."""
    began = time.process_time()
    pages.text(part * (200_000 // len(part)))
    assert time.process_time() - began < 3

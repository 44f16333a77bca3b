"""Which hosts are nobody's business but the user's: this machine, its networks, and what names only mean there."""

from __future__ import annotations

import ipaddress

_LOCAL_NAMES = (".localhost", ".local", ".internal", ".lan", ".home.arpa", ".intranet", ".corp", ".home")


def private_name(host: str) -> bool:
    """Whether this host, as a URL has it, is known to be private without asking anybody."""
    host = host.lower().rstrip(".")
    address = numeric(host)
    if address is not None:
        return private(address)
    return "." not in host or host.endswith(_LOCAL_NAMES)


def private(address: str) -> bool:
    """Whether an IP address is none of the public internet's: loopback, private, link-local (cloud metadata), multicast, ..."""
    found = ipaddress.ip_address(address.partition("%")[0])
    inner = None
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or _embedded(found)
    return not found.is_global or found.is_multicast or (inner is not None and private(str(inner)))


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address in one that a gateway translates (NAT64), or that is compatible by its form."""
    data = address.packed
    if data[:12] in (b"\0" * 12, bytes.fromhex("0064ff9b0000000000000000")):
        return ipaddress.IPv4Address(data[12:])
    return None


def numeric(host: str) -> str | None:
    """The address that a host is by its form, those of old included that resolvers accept (127.1, 0x7f000001, 2130706433)."""
    import socket

    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return (
            socket.inet_ntoa(socket.inet_aton(host)) if host and host[-1] in "0123456789abcdefx" and host[0].isdigit() else None
        )
    except (OSError, UnicodeError):
        return None

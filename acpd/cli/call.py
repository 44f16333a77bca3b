"""What every command gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from acpd.cli.output import Output
from acpd.config import Config, Paths

if TYPE_CHECKING:
    from argparse import Namespace


class Call(NamedTuple):
    """One command: where it writes, what acpd was told, and the command's own arguments."""

    out: Output
    config: Config
    paths: Paths
    env: Mapping[str, str]
    values: Namespace

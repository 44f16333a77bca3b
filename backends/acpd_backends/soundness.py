"""Whether a catalog's database is in order in itself, whatever its rows say of the logs. Every function is for its thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acpd_backends.sqlite import execute, is_damage, query

if TYPE_CHECKING:
    from sqlite3 import Connection

_STRAY = {
    "documents without their text": "document WHERE id NOT IN (SELECT id FROM document_text)",
    "texts without their document": "document_text WHERE id NOT IN (SELECT id FROM document)",
    "documents of no session": "document WHERE session NOT IN (SELECT number FROM session WHERE number IS NOT NULL)",
}
"""What no transaction of ours leaves."""


def page_fault(db: Connection) -> str:
    """The first fault of the file's pages; "": there is none. Reads every page."""
    try:
        said = str(query(db, "PRAGMA quick_check(1)")[0][0])
    except db.DatabaseError as error:
        if not is_damage(error):
            raise
        return str(error)
    return "" if said == "ok" else said


def index_fault(db: Connection) -> str:
    """What is wrong with the search index; "": nothing. A write for SQLite: about 10 s a GB, in which others wait to write."""
    for what, where in _STRAY.items():
        count = query(db, f"SELECT count(*) FROM {where}")[0][0]  # noqa: S608 - texts of this module
        if count:
            return f"{count} {what}"
    try:
        execute(db, "INSERT INTO search(search) VALUES ('integrity-check')")
    except db.DatabaseError as error:
        if not is_damage(error):
            raise
        return str(error)
    return ""

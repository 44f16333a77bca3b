"""The tables of a catalog and of the SQLite backend, and how a file of an earlier version is brought up."""

from __future__ import annotations

VERSION = 3
"""Of the tables, in `PRAGMA user_version`. A file with a greater one is refused, one with a smaller one is brought up."""

# Without ROWID the key is the id, and an index carries nothing else. Each listing has an index in its own order, only of
# what is listed: without the one of an agent, a page of an agent that is rarely used takes 180 ms at 100,000 rows.
_SCHEMA_1 = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE session(
  id TEXT PRIMARY KEY, agent TEXT NOT NULL, cwd TEXT NOT NULL, title TEXT NOT NULL, createdAt TEXT NOT NULL,
  updatedAt TEXT NOT NULL, messages INTEGER NOT NULL, prompted INTEGER NOT NULL, seq INTEGER NOT NULL,
  size INTEGER NOT NULL, leaf TEXT, "inner" TEXT NOT NULL, parent TEXT, dirs TEXT NOT NULL, state TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_time ON session(updatedAt, id) WHERE prompted;
CREATE INDEX by_cwd ON session(cwd, updatedAt, id) WHERE prompted;
CREATE INDEX by_agent ON session(agent, updatedAt, id) WHERE prompted;
CREATE INDEX by_inner ON session(agent, "inner") WHERE "inner" <> '';
CREATE INDEX still_open ON session(id) WHERE state = 'open';
CREATE TABLE state(
  agent TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY(agent, session, name)
);
CREATE TABLE state_unreadable(
  agent TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY(agent, session, name, value)
);
"""
# What search needs; what it means is in search.py. The texts have a table of their own, so that a walk along many matches reads
# little. FTS5 gets tokens, which its own tokenizer leaves as they are: it separates at all of ASCII but letters and digits.
_SCHEMA_2 = """
DROP INDEX still_open;
CREATE INDEX unclean ON session(id) WHERE state <> 'clean';
ALTER TABLE session ADD COLUMN searched INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN settled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN number INTEGER;
CREATE INDEX behind ON session(updatedAt, id) WHERE (searched < 0 OR prompted AND searched < seq);
CREATE UNIQUE INDEX by_number ON session(number) WHERE number IS NOT NULL;
CREATE TABLE document(
  id INTEGER PRIMARY KEY, session INTEGER NOT NULL, scope INTEGER NOT NULL, seq INTEGER NOT NULL, entry TEXT NOT NULL,
  at INTEGER NOT NULL
);
CREATE INDEX document_of ON document(session, seq);
CREATE TABLE document_text(id INTEGER PRIMARY KEY, text TEXT NOT NULL, paths TEXT NOT NULL);
CREATE VIRTUAL TABLE search USING fts5(text, path, content = '', columnsize = 0, tokenize = 'ascii');
"""
# An update of a session costs what it changes in indexes: a page that is written takes 6 us. So the listings' indexes go by
# `listed`, an older updatedAt, and the few sessions that have moved since stand in `recent`; what that means is in catalog.py.
# `late`: not searched as far as the session is known.
_SCHEMA_3 = """
DROP INDEX by_time;
DROP INDEX by_cwd;
DROP INDEX by_agent;
DROP INDEX behind;
ALTER TABLE session ADD COLUMN listed TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN late INTEGER NOT NULL DEFAULT 0;
UPDATE session SET listed = updatedAt, late = (searched < 0 OR prompted AND searched < seq);
CREATE INDEX by_time ON session(listed, id) WHERE prompted;
CREATE INDEX by_cwd ON session(cwd, listed, id) WHERE prompted;
CREATE INDEX by_agent ON session(agent, listed, id) WHERE prompted;
CREATE INDEX recent ON session(id) WHERE listed <> updatedAt;
CREATE INDEX behind ON session(id) WHERE late;
CREATE INDEX unprompted ON session(updatedAt, id) WHERE NOT prompted;
"""
STEPS = (_SCHEMA_1, _SCHEMA_2, _SCHEMA_3)
"""From each version to the next one; states and rows stay."""

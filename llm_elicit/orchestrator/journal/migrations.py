"""The journal's schema, as an append-only list of named migrations.

A migration that has been released is never edited: a test holds the digests of all of them.
Each is written once for either database, since the two differ in what can be altered in place.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Migration:
    """One step of the schema: its name, and its statements for either database."""

    name: str
    sqlite: str
    postgresql: str

    def statements(self, dialect: str) -> list[str]:
        """Return the statements for a dialect, in order."""
        script = self.sqlite if dialect == "sqlite" else self.postgresql
        return [part.strip() for part in script.split(";") if part.strip()]


_TYPES = {
    "{number}": ("INTEGER PRIMARY KEY", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    " {strict}": (" STRICT", ""),
    "BIGINT": ("INTEGER", "BIGINT"),
    "DOUBLE PRECISION": ("REAL", "DOUBLE PRECISION"),
}
"""What a script for both databases says, and what each of them has for it."""


def _in_both(name: str, script: str) -> Migration:
    """Return a migration whose statements differ only in the names of types."""
    sqlite = postgresql = script
    for written, (one, other) in _TYPES.items():
        sqlite, postgresql = sqlite.replace(written, one), postgresql.replace(written, other)
    return Migration(name, sqlite, postgresql)


MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        "0001-questions-and-answers",
        sqlite="""
        CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
        CREATE TABLE questions (
            id INTEGER PRIMARY KEY,
            judge TEXT NOT NULL,
            pair INTEGER NOT NULL,
            presentation TEXT NOT NULL CHECK (presentation IN ('ab', 'ba')),
            replicate INTEGER NOT NULL,
            state TEXT NOT NULL DEFAULT 'planned'
                CHECK (state IN ('planned', 'in flight', 'done', 'failed')),
            attempts INTEGER NOT NULL DEFAULT 0,
            reserved REAL NOT NULL DEFAULT 0,
            lost REAL NOT NULL DEFAULT 0,
            error TEXT,
            UNIQUE (judge, pair, presentation, replicate)
        ) STRICT;
        CREATE INDEX by_state ON questions (judge, state);
        CREATE TABLE answers (
            question INTEGER PRIMARY KEY REFERENCES questions (id),
            template TEXT NOT NULL,
            prompt_hash TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            settings TEXT NOT NULL,
            model_asked TEXT NOT NULL,
            model_answered TEXT NOT NULL,
            reply TEXT NOT NULL,
            finish TEXT NOT NULL,
            verdict TEXT NOT NULL,
            first REAL,
            letter_mass REAL,
            probability REAL,
            prompt_tokens INTEGER NOT NULL,
            completion_tokens INTEGER NOT NULL,
            cached_tokens INTEGER NOT NULL,
            cost REAL,
            latency REAL NOT NULL,
            cached INTEGER NOT NULL,
            asked_at TEXT NOT NULL
        ) STRICT;
        """,
        postgresql="""
        CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE questions (
            id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            judge TEXT NOT NULL,
            pair BIGINT NOT NULL,
            presentation TEXT NOT NULL CHECK (presentation IN ('ab', 'ba')),
            replicate BIGINT NOT NULL,
            state TEXT NOT NULL DEFAULT 'planned',
            attempts BIGINT NOT NULL DEFAULT 0,
            reserved DOUBLE PRECISION NOT NULL DEFAULT 0,
            lost DOUBLE PRECISION NOT NULL DEFAULT 0,
            error TEXT,
            UNIQUE (judge, pair, presentation, replicate)
        );
        CREATE TABLE answers (
            question BIGINT PRIMARY KEY REFERENCES questions (id),
            template TEXT NOT NULL,
            prompt_hash TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            settings TEXT NOT NULL,
            model_asked TEXT NOT NULL,
            model_answered TEXT NOT NULL,
            reply TEXT NOT NULL,
            finish TEXT NOT NULL,
            verdict TEXT NOT NULL,
            first DOUBLE PRECISION,
            letter_mass DOUBLE PRECISION,
            probability DOUBLE PRECISION,
            prompt_tokens BIGINT NOT NULL,
            completion_tokens BIGINT NOT NULL,
            cached_tokens BIGINT NOT NULL,
            cost DOUBLE PRECISION,
            latency DOUBLE PRECISION NOT NULL,
            cached INTEGER NOT NULL,
            asked_at TEXT NOT NULL
        );
        """,
    ),
    # Questions are claimed by workers, may be submitted in a batch, and may be set
    # aside. SQLite cannot alter a CHECK, so the table is made anew and renamed; rows in
    # flight belong to no worker that lives, and the next run takes them back.
    Migration(
        "0002-workers-claims-and-quarantine",
        sqlite="""
        CREATE TABLE workers (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            began TEXT NOT NULL,
            expires REAL NOT NULL,
            spent REAL NOT NULL DEFAULT 0,
            tokens INTEGER NOT NULL DEFAULT 0
        ) STRICT;
        INSERT INTO workers
            SELECT 'before', 'runs before 0002', '', 1, COALESCE(SUM(usd), 0),
                   COALESCE(SUM(tokens), 0)
            FROM (SELECT cost AS usd, (1 - cached) * (prompt_tokens + completion_tokens) AS tokens
                  FROM answers UNION ALL SELECT lost, 0 FROM questions);
        CREATE TABLE questions_new (
            id INTEGER PRIMARY KEY,
            judge TEXT NOT NULL,
            pair INTEGER NOT NULL,
            presentation TEXT NOT NULL CHECK (presentation IN ('ab', 'ba')),
            replicate INTEGER NOT NULL,
            state TEXT NOT NULL DEFAULT 'planned' CHECK (state IN
                ('planned', 'in flight', 'submitted', 'done', 'failed', 'quarantined')),
            attempts INTEGER NOT NULL DEFAULT 0,
            reserved REAL NOT NULL DEFAULT 0,
            lost REAL NOT NULL DEFAULT 0,
            error TEXT,
            worker TEXT,
            reserved_tokens INTEGER NOT NULL DEFAULT 0,
            lost_tokens INTEGER NOT NULL DEFAULT 0,
            UNIQUE (judge, pair, presentation, replicate)
        ) STRICT;
        INSERT INTO questions_new
            SELECT id, judge, pair, presentation, replicate, state, attempts, reserved, lost,
                   error, CASE state WHEN 'in flight' THEN 'before' END, 0, 0
            FROM questions;
        DROP TABLE questions;
        ALTER TABLE questions_new RENAME TO questions;
        CREATE INDEX unclaimed ON questions (judge, id) WHERE state = 'planned' AND worker IS NULL;
        CREATE INDEX held ON questions (worker) WHERE state = 'in flight';
        """,
        postgresql="""
        CREATE TABLE workers (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            began TEXT NOT NULL,
            expires DOUBLE PRECISION NOT NULL,
            spent DOUBLE PRECISION NOT NULL DEFAULT 0,
            tokens BIGINT NOT NULL DEFAULT 0
        );
        ALTER TABLE questions
            ADD COLUMN worker TEXT,
            ADD COLUMN reserved_tokens BIGINT NOT NULL DEFAULT 0,
            ADD COLUMN lost_tokens BIGINT NOT NULL DEFAULT 0,
            ADD CHECK (state IN
                ('planned', 'in flight', 'submitted', 'done', 'failed', 'quarantined'));
        CREATE INDEX unclaimed ON questions (judge, id) WHERE state = 'planned' AND worker IS NULL;
        CREATE INDEX held ON questions (worker) WHERE state = 'in flight';
        """,
    ),
    # A question in a batch knows which; a batch is on record before it is handed in.
    _in_both(
        "0003-batches",
        """
        CREATE TABLE batches (
            tag TEXT PRIMARY KEY,
            judge TEXT NOT NULL,
            batch TEXT,
            fate TEXT NOT NULL CHECK (fate IN
                ('intended', 'submitted', 'collected', 'refused', 'released')),
            made DOUBLE PRECISION NOT NULL,
            note TEXT NOT NULL
        ) {strict};
        ALTER TABLE questions ADD COLUMN batch TEXT;
        CREATE INDEX submitted ON questions (batch) WHERE state = 'submitted';
        """,
    ),
    # What a reasoning model showed of its thinking, apart from what it answered.
    _in_both(
        "0004-thinking",
        "ALTER TABLE answers ADD COLUMN thinking TEXT NOT NULL DEFAULT ''",
    ),
    # The pairs of a round that was planned from answers, before the first of them is asked.
    _in_both(
        "0005-rounds",
        """
        CREATE TABLE rounds (
            judge TEXT NOT NULL,
            number INTEGER NOT NULL,
            pairs TEXT NOT NULL,
            PRIMARY KEY (judge, number)
        ) {strict};
        """,
    ),
    # Questions besides the pairs. SQLite cannot alter a CHECK: made anew and renamed, as in 0002.
    Migration(
        "0006-direct-questions",
        sqlite="""
        CREATE TABLE questions_new (
            id INTEGER PRIMARY KEY,
            judge TEXT NOT NULL,
            pair INTEGER NOT NULL,
            presentation TEXT NOT NULL
                CHECK (presentation IN ('ab', 'ba', 'quantiles', 'sample', 'row')),
            replicate INTEGER NOT NULL,
            state TEXT NOT NULL DEFAULT 'planned' CHECK (state IN
                ('planned', 'in flight', 'submitted', 'done', 'failed', 'quarantined')),
            attempts INTEGER NOT NULL DEFAULT 0,
            reserved REAL NOT NULL DEFAULT 0,
            lost REAL NOT NULL DEFAULT 0,
            error TEXT,
            worker TEXT,
            reserved_tokens INTEGER NOT NULL DEFAULT 0,
            lost_tokens INTEGER NOT NULL DEFAULT 0,
            batch TEXT,
            UNIQUE (judge, pair, presentation, replicate)
        ) STRICT;
        INSERT INTO questions_new
            SELECT id, judge, pair, presentation, replicate, state, attempts, reserved, lost,
                   error, worker, reserved_tokens, lost_tokens, batch
            FROM questions;
        DROP TABLE questions;
        ALTER TABLE questions_new RENAME TO questions;
        CREATE INDEX unclaimed ON questions (judge, id) WHERE state = 'planned' AND worker IS NULL;
        CREATE INDEX held ON questions (worker) WHERE state = 'in flight';
        CREATE INDEX submitted ON questions (batch) WHERE state = 'submitted';
        """,
        postgresql="""
        ALTER TABLE questions
            DROP CONSTRAINT questions_presentation_check,
            ADD CONSTRAINT questions_presentation_check
                CHECK (presentation IN ('ab', 'ba', 'quantiles', 'sample', 'row'));
        """,
    ),
    # Pairs of ranges in either order, stated ratios, and what form of answer was asked for.
    Migration(
        "0007-ranges-ratios-and-formats",
        sqlite="""
        CREATE TABLE questions_new (
            id INTEGER PRIMARY KEY,
            judge TEXT NOT NULL,
            pair INTEGER NOT NULL,
            presentation TEXT NOT NULL CHECK (presentation IN
                ('ab', 'ba', 'quantiles', 'sample', 'row', 'range-ab', 'range-ba', 'ratio')),
            replicate INTEGER NOT NULL,
            state TEXT NOT NULL DEFAULT 'planned' CHECK (state IN
                ('planned', 'in flight', 'submitted', 'done', 'failed', 'quarantined')),
            attempts INTEGER NOT NULL DEFAULT 0,
            reserved REAL NOT NULL DEFAULT 0,
            lost REAL NOT NULL DEFAULT 0,
            error TEXT,
            worker TEXT,
            reserved_tokens INTEGER NOT NULL DEFAULT 0,
            lost_tokens INTEGER NOT NULL DEFAULT 0,
            batch TEXT,
            UNIQUE (judge, pair, presentation, replicate)
        ) STRICT;
        INSERT INTO questions_new
            SELECT id, judge, pair, presentation, replicate, state, attempts, reserved, lost,
                   error, worker, reserved_tokens, lost_tokens, batch
            FROM questions;
        DROP TABLE questions;
        ALTER TABLE questions_new RENAME TO questions;
        CREATE INDEX unclaimed ON questions (judge, id) WHERE state = 'planned' AND worker IS NULL;
        CREATE INDEX held ON questions (worker) WHERE state = 'in flight';
        CREATE INDEX submitted ON questions (batch) WHERE state = 'submitted';
        ALTER TABLE answers ADD COLUMN format TEXT NOT NULL DEFAULT 'letter'
        """,
        postgresql="""
        ALTER TABLE questions
            DROP CONSTRAINT questions_presentation_check,
            ADD CONSTRAINT questions_presentation_check CHECK (presentation IN
                ('ab', 'ba', 'quantiles', 'sample', 'row', 'range-ab', 'range-ba', 'ratio'));
        ALTER TABLE answers ADD COLUMN format TEXT NOT NULL DEFAULT 'letter'
        """,
    ),
    # The number of a worker's last transaction. Where a time-out had undone what a late answer had
    # done, the question is done again.
    _in_both(
        "0008-transactions-and-late-answers",
        """
        ALTER TABLE workers ADD COLUMN written BIGINT NOT NULL DEFAULT 0;
        UPDATE questions
            SET state = 'done', worker = NULL, error = NULL, reserved = 0, reserved_tokens = 0
            WHERE state <> 'done' AND id IN (SELECT question FROM answers)
        """,
    ),
    # Digests reveal answers and rounds that were changed by hand; older rows have none.
    _in_both(
        "0011-digests",
        """
        ALTER TABLE answers ADD COLUMN digest TEXT;
        ALTER TABLE rounds ADD COLUMN digest TEXT
        """,
    ),
    # What a run should do and does, which any process may read and ask for, and its events.
    _in_both(
        "0012-run-control-and-events",
        """
        CREATE TABLE control (
            id BIGINT PRIMARY KEY CHECK (id = 1),
            wanted TEXT NOT NULL CHECK (wanted IN ('running', 'paused', 'cancelled')),
            state TEXT NOT NULL,
            stage TEXT NOT NULL,
            owner TEXT NOT NULL,
            error TEXT,
            max_cost DOUBLE PRECISION,
            concurrency BIGINT,
            changed DOUBLE PRECISION NOT NULL,
            alive DOUBLE PRECISION NOT NULL
        ) {strict};
        CREATE TABLE events (
            seq BIGINT PRIMARY KEY,
            at TEXT NOT NULL,
            kind TEXT NOT NULL,
            judge TEXT,
            data TEXT NOT NULL
        ) {strict}
        """,
    ),
    # The cards that people were given, with repeats and attention questions, and what they chose.
    # No question is with two people, and nobody has two cards.
    _in_both(
        "0013-people",
        """
        CREATE TABLE people (
            id {number},
            judge TEXT NOT NULL,
            expert TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN ('question', 'repeat', 'attention')),
            question BIGINT REFERENCES questions (id),
            pair BIGINT NOT NULL,
            presentation TEXT NOT NULL CHECK (presentation IN ('ab', 'ba')),
            state TEXT NOT NULL CHECK (state IN ('leased', 'answered', 'undone', 'released')),
            expires DOUBLE PRECISION NOT NULL,
            shown DOUBLE PRECISION NOT NULL,
            choice TEXT,
            expected TEXT,
            confidence DOUBLE PRECISION,
            seconds DOUBLE PRECISION,
            answered_at TEXT
        ) {strict};
        CREATE UNIQUE INDEX one_card_of_an_expert ON people (judge, expert) WHERE state = 'leased';
        CREATE UNIQUE INDEX one_expert_of_a_question ON people (question)
            WHERE kind = 'question' AND state IN ('leased', 'answered');
        CREATE INDEX people_by_expert ON people (judge, expert, state);
        CREATE INDEX people_by_pair ON people (judge, pair)
        """,
    ),
    # How often a run was taken over, so that a process that was only suspended sees that it was.
    _in_both(
        "0014-takeovers",
        "ALTER TABLE control ADD COLUMN takeovers BIGINT NOT NULL DEFAULT 0",
    ),
    # Whether an answer's log-odds are a bound: a letter was not among the listed tokens.
    _in_both(
        "0015-censored-log-odds",
        "ALTER TABLE answers ADD COLUMN censored BIGINT NOT NULL DEFAULT 0",
    ),
)
"""Named, append-only."""

"""The tables of a ledger, and the statements that are run for each charge."""

import sqlalchemy as sa

VERSION = 1  # of the schema
# From each version, the statements that lead to the next one.
MIGRATIONS: dict[int, list[str]] = {}
TABLES = sa.MetaData()
# In SQLite an INTEGER key is the row's own address; any other needs an index.
_SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")
META = sa.Table(
    "mapl_meta",
    TABLES,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

# Losses are integers in the unit of their rule, deltas in units of 1e-18. Every row
# carries the totals of its data set, so that reading the last row is enough.
ENTRIES = sa.Table(
    "mapl_entries",
    TABLES,
    sa.Column("seq", _SEQ, primary_key=True, autoincrement=False),
    sa.Column("dataset", sa.Text, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("loss", sa.BigInteger, nullable=False),
    sa.Column("delta", sa.BigInteger, nullable=False),
    sa.Column("loss_spent", sa.BigInteger, nullable=False),
    sa.Column("delta_spent", sa.BigInteger, nullable=False),
    sa.Column("loss_limit", sa.BigInteger, nullable=False),
    sa.Column("delta_limit", sa.BigInteger, nullable=False),
    sa.Column("public", sa.Text, nullable=False),  # JSON that may be shown
    sa.Column("sealed", sa.Text, nullable=False),  # JSON; private
    sa.Column("blob", sa.LargeBinary, nullable=False),
    sa.Column("mac", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("dataset", "number"),
    sa.UniqueConstraint("dataset", "request"),
    sa.CheckConstraint("kind IN ('create', 'begin', 'charge', 'ask', 'reply')"),
    sa.CheckConstraint("seq >= 1 AND number >= 1 AND loss >= 0 AND delta >= 0"),
    sa.CheckConstraint("loss_spent >= loss AND loss_spent <= loss_limit"),
    sa.CheckConstraint("delta_spent >= delta AND delta_spent <= delta_limit"),
)

TYPES = {column.name: column.type.python_type for column in ENTRIES.columns}
CHAINED = [name for name in TYPES if name not in ("blob", "mac")]
APPEND_ONLY = {
    "sqlite": [
        f"CREATE TRIGGER mapl_no_{verb.lower()} BEFORE {verb} ON mapl_entries "
        "BEGIN SELECT RAISE(ABORT, 'mapl_entries is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE FUNCTION mapl_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'mapl_entries is append-only'; END $$",
        "CREATE TRIGGER mapl_append_only BEFORE UPDATE OR DELETE OR TRUNCATE "
        "ON mapl_entries EXECUTE FUNCTION mapl_append_only()",
    ],
}
SELECT = sa.select(ENTRIES)
LAST_TWO = SELECT.order_by(ENTRIES.c.seq.desc()).limit(2)
LAST_MAC = sa.select(ENTRIES.c.mac).order_by(ENTRIES.c.seq.desc()).limit(1)
LAST_OF_DATASET = (
    SELECT.where(ENTRIES.c.dataset == sa.bindparam("name"))
    .order_by(ENTRIES.c.number.desc())
    .limit(1)
)

OF_REQUEST = SELECT.where(
    ENTRIES.c.dataset == sa.bindparam("name"),
    ENTRIES.c.request == sa.bindparam("wanted"),
)

# Requests are hexadecimal digests and words: no wildcard occurs in them.
LAST_LIKE = (
    SELECT.where(
        ENTRIES.c.dataset == sa.bindparam("name"),
        ENTRIES.c.request.like(sa.bindparam("pattern")),
    )
    .order_by(ENTRIES.c.number.desc())
    .limit(1)
)
NUMBERS_SINCE = sa.select(sa.func.count(), sa.func.max(ENTRIES.c.number)).where(
    ENTRIES.c.dataset == sa.bindparam("name"),
    ENTRIES.c.number >= sa.bindparam("since"),
)
ROWS_SINCE = sa.select(sa.func.count(), sa.func.max(ENTRIES.c.seq)).where(
    ENTRIES.c.seq >= sa.bindparam("since")
)
MAC_OF = sa.select(ENTRIES.c.mac).where(ENTRIES.c.seq == sa.bindparam("wanted"))
INSERT = sa.insert(ENTRIES)

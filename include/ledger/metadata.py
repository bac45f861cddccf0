"""The metadata that every subject's tables share, and the column types that mean the same on SQLite and MySQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Integer, MetaData, String, Text
from sqlalchemy.dialects.mysql import DATETIME, LONGTEXT
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMING)

ROW_ID = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts up only a column that is exactly an integer."""

TABLE_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mysql_row_format": "DYNAMIC",
}
"""Names and paths differ by case and by every byte; DYNAMIC rows index up to 768 characters."""


def exact(length: int) -> TypeEngine[str]:
    """Text compared byte for byte: names, paths, URLs. `length` in characters; index no more than 768 of them."""
    return String(length).with_variant(String(length, collation="utf8mb4_bin"), "mysql", "mariadb")


def hexadecimal(length: int) -> TypeEngine[str]:
    """A digest as text: ASCII, so that its index costs one byte a character."""
    ascii_text = String(length, collation="ascii_bin")
    return String(length).with_variant(ascii_text, "mysql", "mariadb")


def long_text() -> TypeEngine[str]:
    """Text without a bound that matters."""
    return Text().with_variant(LONGTEXT(collation="utf8mb4_bin"), "mysql", "mariadb")


class UtcTime(TypeDecorator[datetime]):
    """An instant, kept as UTC with microseconds; takes and gives only datetimes that know their zone."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in {"mysql", "mariadb"}:
            return dialect.type_descriptor(DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("an instant without a time zone does not go into the ledger: pass datetime.now(UTC)")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else value.replace(tzinfo=UTC)

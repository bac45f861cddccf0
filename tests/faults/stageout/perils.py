"""Points at which a component dies, or at which another one comes by: around its writes and its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event

from tests.fakes.process import Died


class Perils:
    """Counts the points that the running component passes.

    Points are before a transaction begins, before each statement that writes, before a commit, and around each call of
    FTS, of a storage and of the catalogue.
    """

    def __init__(self, ledger: Engine) -> None:
        self._die_at = self._meet_at = -1
        self._passed = 0
        self._dead, self._writing = False, 0
        self._kind = ""
        self._meet: Callable[[], None] = lambda: None
        event.listen(ledger, "engine_connect", self._connect)
        event.listen(ledger, "begin", self._begin)
        event.listen(ledger, "commit", self._commit)
        event.listen(ledger, "rollback", self._rollback)
        event.listen(ledger, "before_cursor_execute", self._statement)

    @contextmanager
    def of(
        self, die_at: int = -1, meet_at: int = -1, meet: Callable[[], None] = lambda: None, kind: str = ""
    ) -> Iterator[None]:
        """A component runs; at its point `die_at` it dies, at `meet_at` another one runs. Negative: at none.

        `kind`: only points whose names begin so are counted.
        """
        self._die_at, self._meet_at, self._meet, self._kind = die_at, meet_at, meet, kind
        self._passed, self._dead, self._writing = 0, False, 0
        try:
            yield
        except Died:
            if not self._dead:
                raise
        finally:
            self._die_at = self._meet_at = -1
            self._dead = False

    @property
    def passed(self) -> int:
        """How many points the component has passed."""
        return self._passed

    def reach(self, point: str, *, alone: bool = False) -> None:
        """`alone`: a transaction is open, in which no other component writes."""
        if self._dead:
            raise Died(point)
        self._passed += point.startswith(self._kind)
        if self._die_at == self._passed:
            self._dead = True
            raise Died(point)
        if 0 < self._meet_at <= self._passed and not alone and not self._writing:
            meet, self._meet_at = self._meet, -1
            die_at, self._die_at = self._die_at, -1
            meet()
            self._die_at = die_at

    def _connect(self, _connection: Connection) -> None:
        self.reach("begin")

    def _begin(self, connection: Connection) -> None:
        self._writing += _writes(connection)

    def _commit(self, connection: Connection) -> None:
        self.reach("commit", alone=True)
        self._writing -= _writes(connection)

    def _rollback(self, connection: Connection) -> None:
        self._writing -= _writes(connection)

    def _statement(self, _connection: object, _cursor: object, statement: str, *_: Any) -> None:
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            self.reach(statement[:30], alone=True)


def _writes(connection: Connection) -> bool:
    return bool(connection.get_execution_options().get("nightshift_write"))

"""The index of sessions: a page is read by its index, not by sorting all sessions."""

import sqlite3

from rlm_host.sessions import index


def test_a_page_is_read_in_the_order_of_its_index() -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript(index._CREATE)
    plan = connection.execute(f"explain query plan {index._PAGE}", (0, 2**62, "", "", 50))
    steps = [row[3] for row in plan]
    connection.close()
    [step] = steps  # a second one would be the sorting
    assert "USING INDEX page" in step
    assert "(created_at_ms,id)<" in step

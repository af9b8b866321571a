"""What is to be done at the end of a request is done once, however it ends."""

import pytest

from agentstate import request_end


def test_what_is_to_be_done_at_the_end_of_a_request_is_done_once_also_where_it_fails() -> None:
    done: list[str] = []
    scope = {"type": "http"}

    def fails() -> None:
        with request_end.ending(scope) as ends:
            request_end.at_end(ends, lambda: done.append("one"))
            assert ends["type"] == "http"
            assert request_end.is_known(ends)
            assert done == []
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert done == ["one"]
    assert not request_end.is_known(scope)


def test_what_comes_behind_the_end_of_a_request_is_done_at_once() -> None:
    done: list[str] = []
    with request_end.ending({}) as ends:
        pass
    request_end.at_end(ends, lambda: done.append("late"))
    assert done == ["late"]

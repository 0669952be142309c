"""The backlog against a plain list that does the same."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trtopt.serving.batcher import Request, RequestQueue
from trtopt.serving.engine_catalogue import Part


class AgainstAList(RuleBasedStateMachine):
    """Whatever comes and goes, the same requests are there in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self.request_queue = RequestQueue()
        self.model: list[Request] = []
        self.gone: list[Request] = []
        self.now_s = 0.0

    def of_key(self, key: object) -> list[Request]:
        return [request for request in self.model if request.part.key == key]

    @property
    def keys(self) -> list[object]:
        """In the order in which `waiting` tells of them: who has been there longest without leaving."""
        return list(self.request_queue._queues)

    @rule(length=st.integers(1, 3))
    def add(self, length: int) -> None:
        self.now_s += 1
        part = Part(tensors={}, rows=1, key=((length,),))
        request = Request(part, self.now_s, lambda _: None)
        self.model.append(request)
        assert self.request_queue.add(request) == len(self.of_key(part.key))

    @rule(choose=st.integers(0, 99))
    def discard(self, choose: int) -> None:
        if self.model:
            request = self.model.pop(choose % len(self.model))
            self.gone.append(request)
            assert self.request_queue.discard(request)

    @rule(choose=st.integers(0, 99))
    def discard_again(self, choose: int) -> None:
        if self.gone:
            assert not self.request_queue.discard(self.gone[choose % len(self.gone)])

    @rule(choose=st.integers(0, 99), count=st.integers(1, 5))
    def take(self, choose: int, count: int) -> None:
        if self.keys:
            queue = choose % len(self.keys)
            waiting = self.of_key(self.keys[queue])
            expected = waiting[:count]
            assert self.request_queue.take(queue, len(expected)) == expected
            self.forget(expected)

    @rule()
    def take_all(self) -> None:
        assert set(self.request_queue.take_all()) == set(self.model)
        self.forget(list(self.model))

    def forget(self, requests: list[Request]) -> None:
        self.gone += requests
        self.model = [request for request in self.model if request not in requests]

    @invariant()
    def tells_what_is_there(self) -> None:
        assert len(self.request_queue) == len(self.model)
        told = self.request_queue.waiting()
        assert len(told) == len({request.part.key for request in self.model})
        for key, queue in zip(self.keys, told, strict=True):
            requests = self.of_key(key)
            assert (queue.count, queue.oldest_s) == (len(requests), requests[0].arrived_s)


TestAgainstAList = AgainstAList.TestCase

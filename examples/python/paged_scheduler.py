#!/usr/bin/env python3
"""A continuous-batching scheduler over a paged KV cache, with synthetic requests.

    python3 paged_scheduler.py
    python3 paged_scheduler.py --blocks 20 --requests 30 --seed 7

Requests share a system prompt. A step gives every running request one token. When no block is left, the
request that was admitted last is preempted: its sequence is freed, and its blocks stay cached while there is
room. When it is admitted again, what is left of them is found, and only the rest is computed.

The "model" is arithmetic: the next token follows from the K of all tokens before it, as the cache has
them. In the end each answer is computed again without a cache; one wrong block, and they differ.
"""

import argparse
import random
import sys
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from mooncrate import Full
from mooncrate.paged import Geometry, PagedCache

VOCABULARY = 997


@dataclass
class Request:
    name: str
    prompt: list[int]
    answer_tokens: int
    answer: list[int] = field(default_factory=list)
    preemptions: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer


def kv(tokens: list[int], start: int, geometry: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """K and V of tokens, of which the first has the index `start`: they follow from token and place."""
    place = np.arange(start, start + len(tokens))
    one = (np.array(tokens) * 31 + place * 7) % 101
    k = np.repeat(one.astype("float32"), geometry.kv_heads * geometry.head_dim)
    k = k.reshape(len(tokens), geometry.kv_heads, geometry.head_dim)
    return k, -k


def next_token(k: np.ndarray) -> int:
    return int(k[:, 0, 0].sum()) % VOCABULARY


class Scheduler:
    def __init__(self, cache: PagedCache, requests: list[Request]) -> None:
        self.cache = cache
        self.waiting = deque(requests)
        self.running: list[Request] = []
        self.finished: list[Request] = []
        self.found = 0

    def run(self) -> None:
        step = 0
        while self.waiting or self.running:
            self.admit()
            for request in list(self.running):
                if request in self.running:  # it may have been preempted in this very step
                    self.decode(request)
            step += 1
            self.show(step)

    def admit(self) -> None:
        """Takes in who waits, while there is room for the prompt and a block more."""
        while self.waiting:
            request, stats = self.waiting[0], self.cache.stats()
            room = stats["free_blocks"] + stats["cached_blocks"]
            needed = self.cache.geometry.blocks_for(len(request.tokens)) + 1
            if self.running and needed > room:
                return
            try:
                admitted = self.cache.allocate(request.name, request.tokens)
            except Full:
                return
            self.waiting.popleft()
            self.running.append(request)
            self.prefill(request, admitted.cached_tokens)
            word = "resumed " if request.preemptions else "admitted"
            known = f"{admitted.cached_tokens} of {len(request.tokens)} tokens"
            print(f"  {word}  {request.name}: {admitted.blocks} blocks, {known} found", end="")
            print(" again" if request.preemptions and admitted.cached_tokens else "")
            self.found += admitted.cached_tokens

    def prefill(self, request: Request, cached: int) -> None:
        """Computes the KV that was not found."""
        rest = request.tokens[cached:]
        self.cache.write_tokens(request.name, 0, cached, *kv(rest, cached, self.cache.geometry))
        self.cache.publish(request.name, len(request.tokens))

    def decode(self, request: Request) -> None:
        """One more token for a request."""
        token = next_token(self.cache.read_tokens(request.name, 0)[0])
        while True:
            try:
                self.cache.append(request.name, [token])
                break
            except Full:
                if self.preempt() is request:
                    return
        place = len(request.tokens)
        self.cache.write_tokens(request.name, 0, place, *kv([token], place, self.cache.geometry))
        request.answer.append(token)
        self.cache.publish(request.name, place + 1)
        if len(request.answer) == request.answer_tokens:
            self.cache.free(request.name)
            self.running.remove(request)
            self.finished.append(request)
            print(f"  finished  {request.name}: {len(request.answer)} tokens")

    def preempt(self) -> Request:
        """Frees the request that came last; it goes to the front of those who wait."""
        victim = self.running.pop()
        self.cache.free(victim.name)
        victim.preemptions += 1
        self.waiting.appendleft(victim)
        print(f"  preempted {victim.name} at {len(victim.tokens)} tokens")
        return victim

    def show(self, step: int) -> None:
        stats = self.cache.stats()
        counts = f"{len(self.running)} running, {len(self.waiting)} waiting"
        print(f"{step:4} {self.cache.block_map()}  {counts}, {stats['evicted_blocks']} evicted")


def alone(request: Request, geometry: Geometry) -> list[int]:
    """The answer without a cache."""
    tokens = list(request.prompt)
    while len(tokens) < len(request.prompt) + request.answer_tokens:
        tokens.append(next_token(kv(tokens, 0, geometry)[0]))
    return tokens[len(request.prompt) :]


def synthetic(count: int, seed: int) -> list[Request]:
    chance = random.Random(seed)
    system = [chance.randrange(VOCABULARY) for _ in range(12)]
    requests = []
    for number in range(count):
        question = [chance.randrange(VOCABULARY) for _ in range(chance.randint(2, 10))]
        requests.append(Request(f"r{number}", system + question, chance.randint(4, 20)))
    return requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--blocks", type=int, default=24, help="of the cache (%(default)s)")
    parser.add_argument("--requests", type=int, default=12, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (%(default)s)")
    given = parser.parse_args()

    geometry = Geometry(layers=1, kv_heads=2, head_dim=8, block_tokens=4, dtype="float32")
    longest = geometry.blocks_for(12 + 10 + 20) + 1
    if given.blocks < longest:
        sys.exit(f"the longest request needs {longest} blocks; use --blocks {longest} or more")
    cache = PagedCache(geometry, given.blocks, model="arithmetic")
    requests = synthetic(given.requests, given.seed)
    print(". free   c cached   # one request writes it   2 to 9, +: so many requests read it")
    scheduler = Scheduler(cache, list(requests))
    scheduler.run()
    print(cache.dump(), end="")
    wrong = [request.name for request in requests if request.answer != alone(request, geometry)]
    if wrong:
        sys.exit(f"FAILED: the answers of {', '.join(wrong)} differ from those without a cache")
    preempted = sum(request.preemptions for request in requests)
    print(
        f"all of {len(requests)} requests finished with the right answers; "
        f"{scheduler.found} tokens were found and not computed; {preempted} preemptions"
    )


if __name__ == "__main__":
    main()

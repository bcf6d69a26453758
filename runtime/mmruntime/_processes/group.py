"""Group: the processes that run steps together, and what they have called so far."""

from __future__ import annotations

import functools
import hashlib

_CALL_BITS, _TOKEN_BITS = 8, 24
# Bits of the number of a message for what it is in its call.
MESSAGE_BITS = 18


class Group:
    """The processes whose devices a mesh has.

    Attributes:
        members: Their indices, in order.
        key: A name for keys in the exchange.
        agreements: How often they have compared what they are about to do.
        calls: How many steps they have called.
        token: Depends on all of these calls.
        compared: By the name of a step, what they compared of it the last time.
    """

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        name = ",".join(map(str, members)).encode()
        self.key = hashlib.blake2b(name, digest_size=6).hexdigest()
        self.agreements = 0
        self.calls = 0
        self.token = self.key
        self.compared: dict[str, dict[str, str]] = {}

    @property
    def history(self) -> str:
        """What depends on all calls so far, the same in all members: how many, and a digest of them."""
        return f"{self.calls}\nequally many, but not the same: {self.token}"

    def called(self, mark: bytes) -> int:
        """Count a call.

        Args:
            mark: What is called, the same in all members.

        Returns:
            What the numbers of the call's messages begin with; see `MESSAGE_BITS`. It depends on this call and on all
            before it, so that messages of processes that have called something else never meet.
        """
        self.calls += 1
        self.token = hashlib.blake2b(self.token.encode() + mark, digest_size=8).hexdigest()
        token = int(self.token, 16) & ((1 << _TOKEN_BITS) - 1)
        return ((self.calls & ((1 << _CALL_BITS) - 1)) << _TOKEN_BITS | token) << MESSAGE_BITS


@functools.cache
def group_of(members: tuple[int, ...]) -> Group:
    """The group of some processes; one for all steps that they run."""
    return Group(members)

"""Members that read one consumer under faults in any order, one rule at a time.

The laws, after each step:

1. Per key, messages are first handled and first settled in the order of the stream.
2. Only handled messages are settled, and each delivery with one verb; the verb is repeated only
   after it may have been lost.
3. A message held by a member is not delivered to another one while the member may settle it: its
   time has been extended.
4. Credit and held messages are at most what may be pending; credit and received messages are at
   most the prefetch plus the messages that are away.
5. At the end every message is settled, by the server's own count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.nats.jetstream.member_model import MemberModel, run_now
from tests.nats.jetstream.server_model import WAIT, ServerModel
from tests.nats.jetstream.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Callable

MEMBERS = 3
MOST_MESSAGES = 40
ROUNDS = 60
"""Rounds after which a group without faults has settled everything."""
WHO = st.integers(0, MEMBERS - 1)
FEW = st.integers(0, 4)
TROUBLES = ["cut", "back", "freeze", "crash", "leave", "restart"]


class OrderMachine(RuleBasedStateMachine):
    """Rules for the members of one consumer."""

    where: ClassVar[dict[str, Any]] = {}
    """The fixed settings."""

    members: list[MemberModel]

    @initialize(
        max_pending=st.sampled_from([2, 12, 12]),
        prefetch=st.sampled_from([1, 3, 6]),
        keys=st.lists(st.sampled_from("ab"), min_size=2, max_size=8),
    )
    def create(self, max_pending: int, prefetch: int, keys: list[str]) -> None:
        max_pending = self.where.get("max_pending", max_pending)
        self.prefetch = min(self.where.get("prefetch", prefetch), max_pending)
        self.server = ServerModel(max_pending)
        self.truth = Truth(self.server)
        self.made = 0
        self.members = []
        self.publish(keys)
        for _ in range(2):
            self.join()

    def member(self, which: int, fits: Callable[[MemberModel], bool]) -> MemberModel | None:
        """The member that a rule applies to."""
        fit = [each for each in self.members if fits(each)]
        return fit[which % len(fit)] if fit else None

    # -- the stream, and members that run well -----------------------------------------------------

    @rule(keys=st.lists(st.sampled_from("abc"), min_size=1, max_size=4))
    def publish(self, keys: list[str]) -> None:
        for key in keys[: MOST_MESSAGES - len(self.server.keys)]:
            self.server.publish(key)

    @precondition(lambda self: len(self.members) < MEMBERS)
    @rule()
    def join(self) -> None:
        self.made += 1
        made = MemberModel(f"m{self.made}", self.server, self.truth, self.prefetch)
        self.members.append(made)

    @rule(who=WHO, arriving=st.sampled_from([0, 0, 1, 3]), delivered=FEW, received=FEW)
    def pull(self, who: int, arriving: int, delivered: int, received: int) -> None:
        """A member pulls; some of the messages are delivered, and some of these arrive."""
        if member := self.member(who, lambda each: each.is_up):
            member.go_on(arriving)
            member.tend(arriving)
            self.server.deliver(delivered)
            member.receive(received)

    @rule(who=WHO, taken=FEW, lanes=st.lists(FEW, max_size=4))
    def handle(self, who: int, taken: int, lanes: list[int]) -> None:
        """Handlers succeed in any order between keys; failed ones change nothing."""
        if member := self.member(who, lambda each: not each.is_frozen):
            member.take(taken)
            for which in lanes:
                member.handle(which)

    @rule(who=WHO)
    def commit(self, who: int) -> None:
        if member := self.member(who, lambda each: not each.is_frozen):
            member.settle()

    def _work(self, member: MemberModel) -> None:
        """Run all handlers that can run."""
        member.go_on(0)
        member.tend(0)
        self.server.deliver(self.server.max_pending)
        member.receive(len(member.wire))
        member.take(100)
        while any(member.lanes.values()):
            member.handle(0)
        member.settle()

    @rule(ticks=st.sampled_from([1, 1, 1, 2, WAIT]))
    def pass_time(self, ticks: int) -> None:
        for _ in range(ticks):
            self.server.tick()
            for member in self.members:
                if member.is_up:
                    run_now(member.puller.stay_pinned(member.now))
                    if self.server.now % (WAIT // 3) == 0:
                        member.beat()

    # -- members that go, and troubles -------------------------------------------------------------

    @rule(what=st.sampled_from(TROUBLES), who=WHO, few=FEW, flag=st.booleans())
    def trouble(self, what: str, who: int, few: int, flag: bool) -> None:
        """A fault of a member or of the server."""
        if what == "restart":
            self._restart_the_server(2 * few, deliveries=flag)
        elif member := self.member(who, lambda each: each.is_up or what in {"crash", "back"}):
            self._befall(member, what, few, flag=flag)

    def _befall(self, member: MemberModel, what: str, few: int, *, flag: bool) -> None:
        if what == "freeze":
            member.is_frozen = True
        elif what == "cut":  # during a commit, of which only the first acknowledgements arrive
            member.settle(few)
            member.disconnect(is_noticed=flag)
        elif what == "back":
            self._recover(member, few)
        elif what == "crash":
            member.vanish()
            self.members.remove(member)
        elif member.is_claimed:  # it leaves, and may lose its connection meanwhile
            member.give_back(few if flag else None)
            self.members.remove(member)

    def _recover(self, member: MemberModel, late: int) -> None:
        member.is_frozen = False
        if not member.is_connected:
            member.reconnect([*member.owed][:late])

    def _restart_the_server(self, forgets: int, *, deliveries: bool) -> None:
        """All connections are lost, and running members reconnect."""
        for member in self.members:
            if member.is_connected:
                member.disconnect(is_noticed=True)
        self.server.restart(forgets, deliveries=deliveries)
        for member in self.members:
            if not member.is_frozen:
                member.reconnect([])

    # -- the laws ----------------------------------------------------------------------------------

    @invariant()
    def what_is_held_is_extended(self) -> None:
        """Law 3."""
        for member in getattr(self, "members", []):
            if member.has_lapsed or not member.is_claimed:
                continue
            for sequence, record in member.intake.held.items():
                until = self.server.pending.get(sequence)
                assert until is None or until > self.server.now, f"not extended: {record}"

    @invariant()
    def what_is_pending_is_bounded(self) -> None:
        """Law 4."""
        for member in getattr(self, "members", []):
            held, credit = len(member.intake.held), member.puller.window.credit
            assert credit == 0 or credit + held <= member.most_held, "asked for too much"

    def teardown(self) -> None:
        """Law 5: all faults end, and the group becomes idle."""
        if not hasattr(self, "server"):
            return
        if not self.members:
            self.join()
        for member in self.members:
            self._recover(member, 0)
        for _ in range(ROUNDS):
            if len(self.server.settled) == len(self.server.keys):
                return
            self.pass_time(1)
            for member in self.members:
                member.check_lapse()
                self._work(member)
        missing = {*range(1, len(self.server.keys) + 1)} - self.server.settled
        raise AssertionError(f"stuck: {sorted(missing)} are not settled")


def narrowed(**where: Any) -> type[OrderMachine]:
    """The machine with some fixed settings."""
    return type("OrderMachine", (OrderMachine,), {"where": where})

"""Short programs for the order machine that reach states which random rules rarely reach.

In each, messages of one key are with two members. The name of a program is the part that must work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.nats.jetstream.order_machine import OrderMachine


def begin(machine: OrderMachine) -> None:
    """Two members, four messages; the first member has a message and is gone."""
    machine.create(max_pending=12, prefetch=6, keys=["a"] * 4)
    machine.pull(who=0, arriving=0, delivered=1, received=1)
    machine.trouble(what="crash", who=0, few=0, flag=False)
    machine.pass_time(ticks=3)


def gap(machine: OrderMachine) -> None:
    """The second member gets the others and handles those it can; then the first message
    arrives.
    """
    begin(machine)
    machine.pull(who=0, arriving=0, delivered=3, received=3)
    machine.handle(who=0, taken=3, lanes=[0])
    machine.teardown()


def answer(machine: OrderMachine) -> None:
    """It gets another one between the server's answer and its own comparison."""
    begin(machine)
    machine.pull(who=0, arriving=0, delivered=1, received=1)
    machine.pull(who=0, arriving=1, delivered=0, received=0)
    machine.handle(who=0, taken=3, lanes=[0])
    machine.teardown()


def forgotten(machine: OrderMachine) -> None:
    """The server forgets deliveries: the numbers of a standby member have no gap."""
    machine.create(max_pending=12, prefetch=6, keys=["a"] * 4)
    machine.pull(who=0, arriving=0, delivered=2, received=2)
    machine.trouble(what="leave", who=0, few=0, flag=False)
    machine.pull(who=0, arriving=0, delivered=2, received=2)
    machine.pull(who=0, arriving=0, delivered=0, received=0)
    machine.handle(who=0, taken=2, lanes=[0, 0])
    machine.commit(who=0)
    machine.join()
    machine.trouble(what="restart", who=0, few=4, flag=True)
    machine.trouble(what="crash", who=0, few=0, flag=False)
    machine.join()
    machine.pull(who=1, arriving=0, delivered=3, received=3)
    machine.trouble(what="freeze", who=1, few=0, flag=False)
    machine.pass_time(ticks=3)
    machine.pull(who=0, arriving=0, delivered=1, received=1)
    machine.handle(who=0, taken=1, lanes=[0])
    machine.teardown()


def undone(machine: OrderMachine) -> None:
    """The acknowledgements of two members are undone while the connections stay open."""
    machine.create(max_pending=12, prefetch=6, keys=["a"] * 2)
    machine.pull(who=0, arriving=0, delivered=1, received=1)
    machine.handle(who=0, taken=1, lanes=[0])
    machine.commit(who=0)
    machine.trouble(what="crash", who=0, few=0, flag=False)
    machine.pass_time(ticks=3)
    machine.pull(who=0, arriving=0, delivered=1, received=1)
    machine.pull(who=0, arriving=0, delivered=0, received=0)
    machine.handle(who=0, taken=1, lanes=[0])
    machine.commit(who=0)
    machine.server.restart(4, deliveries=False)
    machine.teardown()


def each_other(machine: OrderMachine) -> None:
    """The pin moves while messages wait: then messages wait in two members."""
    begin(machine)
    machine.pull(who=0, arriving=0, delivered=1, received=1)
    machine.join()
    machine.trouble(what="restart", who=0, few=0, flag=False)
    machine.pull(who=1, arriving=0, delivered=1, received=1)
    machine.teardown()


ALL = [gap, answer, forgotten, undone, each_other]

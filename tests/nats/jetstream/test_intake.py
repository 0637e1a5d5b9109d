"""The messages that a partition has received, their delivery order, and their settlement. White
box: the intake.

Proven here: consumer/C:C7, consumer/C:N2.
"""

from __future__ import annotations

import pytest

from sluicegate.nats.jetstream.intake import REMEMBERED, AckSubject, StreamIntake, StreamRecord


def reply_of(sequence: int, number: int, deliveries: int = 1) -> str:
    """The acknowledgement subject of a delivery."""
    return f"$JS.ACK.s.c.{deliveries}.{sequence}.{number}.1000000.0"


def arrive(
    intake: StreamIntake, sequence: int, number: int, *, tries: int = 1, key: str = "k"
) -> str:
    """Let a message arrive with this delivery; return the result."""
    reply = reply_of(sequence, number, tries)
    delivery = AckSubject.of(reply)
    kind = intake.kind(delivery)
    if kind == "held":
        intake.redeliver(delivery, reply)
    elif kind != "settled":
        intake.receive(
            StreamRecord("s", 0, delivery, subject=key, key=key, value=b"", headers=(), reply=reply)
        )
    return kind


def begun(delivered: int = 0, pending: int = 0) -> StreamIntake:
    """The intake of a claim that has begun."""
    intake = StreamIntake()
    intake.begin(delivered)
    intake.look(pending, delivered)
    return intake


def taken(intake: StreamIntake, most: int = 100) -> list[int]:
    """The sequence numbers of the deliverable messages."""
    return [record.offset for record in intake.take(most)[0]]


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("$JS.ACK.s.c.2.30.400.5000.6", AckSubject(2, 30, 400, 5000)),
        ("$JS.ACK.hub.account.s.c.2.30.400.5000.6", AckSubject(2, 30, 400, 5000)),
        ("$JS.ACK._.account.s.c.2.30.400.5000.6.token", AckSubject(2, 30, 400, 5000)),
    ],
)
def test_an_acknowledgement_subject_tells_of_the_delivery(reply: str, wanted: AckSubject) -> None:
    """With 9 tokens, and with a domain and an account 11 or 12."""
    assert AckSubject.of(reply) == wanted


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "inbox.m",
        "$JS.ACK.",
        "$JS.ACK.s.c.1",
        "$JS.API.s.c.2.30.400.5000.6",
        "$JS.ACK.s.c.a.b.c.d.e",
    ],
)
def test_another_subject_is_refused(reply: str) -> None:
    with pytest.raises(ValueError, match=r"acknowledgement subject|invalid literal"):
        AckSubject.of(reply)


def test_messages_without_a_gap_are_delivered_at_once() -> None:
    intake = begun()
    assert [arrive(intake, at, at) for at in (1, 2, 3)] == ["new"] * 3
    assert taken(intake, 2) == [1, 2]
    assert (intake.received, intake.end, intake.floor) == (1, 4, 1)
    assert taken(intake) == [3]


def test_before_it_has_begun_everything_waits() -> None:
    intake = StreamIntake()
    arrive(intake, 1, 1)
    assert taken(intake) == []
    intake.begin(1)
    assert taken(intake) == []
    assert intake.look(1, 1)
    assert taken(intake) == [1]


def test_behind_a_gap_everything_waits_for_what_is_pending_elsewhere() -> None:
    """consumer/C:N2: the delivery of 2 was lost; it arrives again behind 3 and 4."""
    intake = begun()
    arrive(intake, 1, 1)
    arrive(intake, 3, 3)
    assert taken(intake) == [1]
    assert not intake.look(3, 3)
    arrive(intake, 4, 4)
    assert taken(intake) == []
    arrive(intake, 2, 5, tries=2)
    assert not intake.look(5, 5), "another one is still elsewhere"
    assert intake.look(4, 5)
    records, failed = intake.take(10)
    assert ([each.offset for each in records], failed) == ([2, 3, 4], 0), "1 is before them"


def test_what_arrives_behind_the_servers_answer_does_not_count() -> None:
    """consumer/C:N2: when the server was queried, 2 was pending and 4 was not; 2 is elsewhere."""
    intake = begun()
    arrive(intake, 3, 3)
    arrive(intake, 4, 4)
    assert intake.away(2, 3) == 1
    assert not intake.look(2, 3)
    arrive(intake, 2, 5, tries=2)
    assert intake.look(3, 5)


def test_on_a_new_connection_everything_waits_for_a_look() -> None:
    """consumer/C:N2: the server has forgotten the delivery of 2, and may have delivered 1 to
    another member.
    """
    intake = begun()
    arrive(intake, 1, 1)
    arrive(intake, 2, 2)
    assert taken(intake) == [1, 2]
    intake.resume(1)
    arrive(intake, 3, 2)
    assert taken(intake) == []
    assert intake.away(3, 2) == 1, "one of 1 and 3, and of others"
    assert arrive(intake, 2, 3) == "held"
    assert intake.look(3, 3)
    assert taken(intake) == [3]


def test_only_the_first_message_of_a_key_may_have_been_tried() -> None:
    """consumer/C:N2: the messages behind it waited in their lane."""
    intake = StreamIntake()
    for at, (key, tries) in enumerate([("a", 3), ("a", 2), ("b", 2), ("c", 1)], 1):
        arrive(intake, at, at, tries=tries, key=key)
    intake.look(4, 4)
    taken = [intake.take(10) for _ in range(2)]
    assert [([each.offset for each in records], failed) for records, failed in taken] == [
        ([1, 2], 2),
        ([3, 4], 1),
    ]
    assert intake.take(10) == ([], 0)


def test_a_held_message_that_comes_again_is_settled_by_its_last_delivery() -> None:
    """consumer/C:C7: it is delivered once, and settled once."""
    intake = begun()
    arrive(intake, 1, 1)
    assert arrive(intake, 1, 2, tries=2) == "held"
    assert taken(intake) == [1]
    assert intake.settle([1]) == [(1, reply_of(1, 2, 2))]
    assert intake.settle([1]) == []
    assert intake.floor == 2


def test_a_settled_message_that_comes_again_is_known() -> None:
    """consumer/C:C7: its acknowledgement was lost."""
    intake = begun()
    arrive(intake, 1, 1)
    assert taken(intake) == [1]
    intake.settle([1])
    assert arrive(intake, 1, 2, tries=2) == "settled"
    assert (intake.received, intake.held) == (0, {})
    assert intake.last_settled(10) == [reply_of(1, 1)]


def test_so_many_settled_messages_are_known() -> None:
    intake, count = begun(), 2 * REMEMBERED + 1
    for at in range(1, count + 1):
        arrive(intake, at, at)
        intake.settle([at])
    lately = intake.last_settled(2 * count)
    assert lately == [reply_of(at, at) for at in range(count - REMEMBERED + 1, count + 1)]
    assert intake.last_settled(1) == lately[-1:]


def test_an_unknown_message_from_before_the_last_one_ends_the_claim() -> None:
    """Another process had settled it, and the settlement was undone."""
    intake = begun(5)
    arrive(intake, 9, 6)
    assert taken(intake) == [9]
    assert arrive(intake, 4, 7, tries=2) == "out of place"
    assert intake.is_out_of_place
    assert not intake.look(2, 7), "this claim cannot deliver it"
    assert taken(intake) == []
    intake.restart()
    intake.begin(7)
    assert intake.look(2, 7)
    assert taken(intake) == [4, 9]


def test_what_is_given_up_is_in_order_and_forgotten() -> None:
    """consumer/C:N2."""
    intake = begun(0, 2)
    for number, at in enumerate((3, 1, 2), 1):
        arrive(intake, at, number)
    assert intake.floor == 1
    assert [each.offset for each in intake.give_up()] == [1, 2, 3]
    assert (intake.received, intake.held, intake.end) == (0, {}, 0)
    assert intake.floor == 1, "another consumer would begin here"
    assert intake.is_waiting


def test_what_waits_is_let_go_in_order_and_comes_again() -> None:
    """consumer/C:N2: delivered messages stay."""
    intake = begun()
    arrive(intake, 1, 1)
    for number, at in ((4, 5), (5, 3)):
        arrive(intake, at, number)
    assert [each.offset for each in intake.let_go()] == [3, 5]
    assert intake.let_go() == []
    assert (list(intake.held), intake.is_waiting) == ([1], True)
    assert arrive(intake, 3, 9, tries=2) == "new"


def test_another_consumer_numbers_its_deliveries_from_one() -> None:
    intake = begun(100)
    intake.give_up()
    intake.renumber()
    intake.begin(0)
    assert intake.look(0, 0)
    arrive(intake, 7, 1)
    assert taken(intake) == [7]
    arrive(intake, 9, 3)
    assert taken(intake) == []


def test_what_waits_of_a_forgotten_delivery_comes_again() -> None:
    """consumer/C:N2: nothing shows whether it is pending, so it is neither held nor extended."""
    intake = begun()
    arrive(intake, 1, 1)
    assert taken(intake) == [1]
    for number, at in ((3, 3), (5, 4)):
        arrive(intake, at, number)
    intake.resume(0)
    assert list(intake.held) == [1], "it runs"
    assert arrive(intake, 3, 1) == "new"
    assert not intake.look(2, 1)
    intake.restart()
    assert list(intake.held) == [3], "its claim has ended"
    assert arrive(intake, 1, 2) == "new"
    assert intake.look(2, 2)
    assert taken(intake) == [1, 3]

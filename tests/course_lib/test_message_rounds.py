"""Rounds and space-time diagrams of traces that are written by hand."""

import matplotlib.pyplot as plt
import pytest

from course_lib.distributed.messages.message_rounds import message_rounds
from course_lib.distributed.messages.message_trace import Message, MessageTrace
from course_lib.distributed.messages.space_time import space_time
from course_lib.plots.communication import bandwidths, message_times, predicted_times, sent_bytes


def traces(ranks, *messages):
    """Of (source, destination, bytes, sent, received)."""
    found = [MessageTrace(rank, ranks) for rank in range(ranks)]
    for source, destination, nbytes, sent, received in messages:
        found[source].messages.append(Message("send", destination, nbytes, sent, received))
        found[destination].messages.append(Message("recv", source, nbytes, sent, received))
    for trace in found:
        trace.messages.sort(key=lambda message: message.start)
    return found


def rounds(found):
    return {(m.source, m.destination): m.round for m in message_rounds(found)}


def test_independent_messages_share_a_round_and_a_chain_does_not():
    together = traces(4, (0, 1, 8, 0.0, 5.0), (2, 3, 8, 3.0, 4.0))
    assert rounds(together) == {(0, 1): 1, (2, 3): 1}
    chain = traces(4, (0, 1, 8, 0.0, 1.0), (1, 2, 8, 1.0, 2.0), (2, 3, 8, 2.5, 3.0))
    assert rounds(chain) == {(0, 1): 1, (1, 2): 2, (2, 3): 3}


def test_a_rank_sends_one_and_receives_one_in_a_round():
    assert rounds(traces(3, (0, 1, 8, 0.0, 1.0), (0, 2, 8, 0.1, 0.5))) == {(0, 1): 1, (0, 2): 2}
    assert rounds(traces(3, (1, 0, 8, 0.0, 1.0), (2, 0, 8, 0.1, 2.0))) == {(1, 0): 1, (2, 0): 2}
    assert rounds(traces(2, (0, 1, 8, 0.0, 1.0), (1, 0, 8, 0.0, 1.0))) == {(0, 1): 1, (1, 0): 1}


def test_what_arrives_after_a_send_does_not_delay_it():
    late = traces(3, (0, 1, 8, 0.0, 9.0), (1, 2, 8, 1.0, 2.0))  # rank 1 sent before it had received
    assert rounds(late) == {(0, 1): 1, (1, 2): 1}


def test_a_message_is_numbered_after_those_that_its_sender_knew():
    found = [MessageTrace(rank, 5) for rank in range(5)]

    def note(rank, *messages):
        found[rank].messages += [Message(kind, peer, 8, start, end) for kind, peer, start, end in messages]

    note(0, ("send", 2, 0.0, 9.0), ("send", 1, 0.1, 1.0))
    note(1, ("recv", 0, 0.0, 1.0), ("send", 3, 2.0, 3.0))
    note(2, ("recv", 4, 0.0, 8.0), ("recv", 0, 0.1, 9.0))
    note(3, ("recv", 1, 0.0, 3.0))
    note(4, ("send", 2, 7.0, 8.0))
    assert rounds(found) == {(4, 2): 1, (0, 2): 2, (0, 1): 3, (1, 3): 4}


def test_messages_whose_order_is_a_circle_are_numbered_all_the_same():
    found = [MessageTrace(rank, 4) for rank in range(4)]

    def post(trace, *kinds):
        for start, (kind, peer) in enumerate(kinds):
            found[trace].messages.append(Message(kind, peer, 8, float(start), 9.0))

    post(0, ("send", 2), ("send", 3))
    post(1, ("send", 3), ("send", 2))
    post(2, ("recv", 1), ("recv", 0))
    post(3, ("recv", 0), ("recv", 1))
    assert len(message_rounds(found)) == 4


def test_messages_of_a_pair_arrive_in_order_and_tags_are_kept_apart():
    found = [MessageTrace(0, 2), MessageTrace(1, 2)]
    found[0].messages = [Message("send", 1, 10, 0.0, 0.1, tag=1), Message("send", 1, 20, 0.2, 0.3, tag=2)]
    found[1].messages = [Message("recv", 0, 20, 0.0, 0.4, tag=2), Message("recv", 0, 10, 0.5, 0.6, tag=1)]
    assert sorted((m.nbytes, m.sent, m.received) for m in message_rounds(found)) == [(10, 0.0, 0.6), (20, 0.2, 0.4)]


def test_messages_that_do_not_match():
    found = traces(2, (0, 1, 8, 0.0, 1.0))
    found[1].messages.clear()
    with pytest.raises(ValueError, match="rank 0 sent rank 1 a message that nobody received"):
        message_rounds(found)
    with pytest.raises(ValueError, match="rank 0 awaits a message from rank 1 that nobody sent"):
        message_rounds([MessageTrace(0, 2, [Message("recv", 1, 8, 0.0, 1.0)]), MessageTrace(1, 2)])


@pytest.mark.parametrize("clock", ["rounds", "seconds"])
def test_the_diagram_has_an_arrow_for_each_message(clock):
    found = traces(3, (0, 1, 1000, 5.000, 5.010), (1, 2, 500, 5.010, 5.020))
    axes = space_time(found, "a chain", clock)
    ends = [(tuple(a.xyann), tuple(a.xy)) for a in axes.texts]
    if clock == "seconds":
        assert [(pytest.approx(0), 0), (pytest.approx(10), 1)] == list(ends[0])
        assert [(pytest.approx(10), 1), (pytest.approx(20), 2)] == list(ends[1])
        assert (axes.get_xlabel(), axes.get_title(loc="left")) == ("time (ms)", "a chain")
    else:
        assert [(a[1], b[1]) for a, b in ends] == [(0, 1), (1, 2)]
        assert ends[0][1][0] < 1 < ends[1][0][0] + 0.1
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2"]
        assert axes.get_title(loc="left") == "a chain: 2 rounds"
    widths = [a.arrow_patch.get_linewidth() for a in axes.texts]
    assert widths[0] > widths[1]
    assert axes.yaxis_inverted()  # rank 0 on top
    plt.close("all")
    with pytest.raises(ValueError, match="'rounds' or 'seconds'"):
        space_time(found, "a chain", "hours")


def test_the_figures_of_costs_show_what_they_are_given():
    axes = message_times([1e3, 1e6], [5e-5, 1e-3], 50e-6, 1e-9)
    assert axes.get_title(loc="left") == "A message costs 50 µs, and 1 s for 1.0 GB" and len(axes.lines) == 4
    seconds = {"ring": [0.001, 0.002, 0.3], "tree": [0.001, 0.003, 0.01]}
    (axes,) = predicted_times({"1 MB": seconds}, [2, 8, 2048], "predicted").axes
    assert (
        list(axes.lines[0].get_ydata()) == [1, 2, 300] and axes.get_title(loc="left") == "1 MB" and len(axes.lines) == 2
    )
    axes = bandwidths([1e3, 1e6], {"ours": [1e8, 5e8]}, "bandwidth", 1e9)
    assert list(axes.lines[0].get_ydata()) == [0.1, 0.5] and axes.get_ylim()[1] > 1.0
    axes = sent_bytes({"ring": [1_000_000, 2_000_000]}, 5e5, "bytes")
    assert [bar.get_height() for bar in axes.patches] == [1, 2] and axes.lines[0].get_ydata()[0] == 0.5
    plt.close("all")

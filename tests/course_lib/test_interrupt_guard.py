"""`InterruptGuard`: the first signal raises, those after it are dropped, and what is held back comes later."""

import signal
import threading

import pytest

from course_lib.distributed.launching.interrupt_guard import InterruptGuard


@pytest.fixture(autouse=True)
def handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # as it was found
    signal.signal(signal.SIGINT, before)


def test_the_second_signal_does_not_disturb_the_ending():
    ended = []
    with pytest.raises(KeyboardInterrupt) as raised, InterruptGuard("gone", signal.SIGINT) as signals:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            assert signals.raised
            signal.raise_signal(signal.SIGINT)
            with signals.hold():
                signal.raise_signal(signal.SIGINT)
            ended.append(True)
    assert ended and raised.value._render_traceback_() == ["KeyboardInterrupt: gone"]


def test_what_is_held_back_raises_at_the_blocks_end():
    done = []
    with pytest.raises(KeyboardInterrupt), InterruptGuard("gone", signal.SIGINT) as signals:
        with signals.hold():
            with signals.hold():
                signal.raise_signal(signal.SIGINT)
            done.append("inside")
        done.append("after")
    assert done == ["inside"]


def test_an_error_of_the_held_block_comes_first_and_the_signal_is_not_lost():
    with pytest.raises(KeyboardInterrupt) as raised, InterruptGuard("gone", signal.SIGINT) as signals, signals.hold():
        signal.raise_signal(signal.SIGINT)
        raise ValueError
    assert isinstance(raised.value.__context__, ValueError)


def test_other_signals_end_the_process_as_a_shell_counts():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as raised, InterruptGuard("gone", signal.SIGINT, signal.SIGTERM):
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.code == 128 + signal.SIGTERM and signal.getsignal(signal.SIGTERM) is before


def test_off_the_main_thread_it_does_nothing(handler):
    seen = []

    def other():
        with InterruptGuard("gone", signal.SIGINT) as signals, signals.hold():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [handler]

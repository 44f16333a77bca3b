"""What a shim keeps, forgets, sends again and passes on, by the prefixes alone."""

from __future__ import annotations

import pytest

from acpd.shim.ledger import OVERHEAD, Ledger


def test_lines_are_numbered_over_all_blocks() -> None:
    """Numbers go on from block to block, and an empty line has one too."""
    ledger = Ledger()
    assert b"1 a\n2 \n" == ledger.up([b"a", b""])
    assert b"3 b b\n" == ledger.up([b"b b"])
    assert [b"next=4"] == list(ledger.hello())
    assert [b"1 a\n", b"2 \n", b"3 b b\n"] == list(ledger.again())


def test_what_is_settled_is_not_sent_again() -> None:
    """A settled line is dropped, and what its keeping cost is given back."""
    ledger = Ledger()
    ledger.up([b"one", b"two"])
    assert 2 * (3 + OVERHEAD) == ledger.unsettled
    assert b"answer\n" == ledger.down(b"- 1 answer\n")
    assert 3 + OVERHEAD == ledger.unsettled
    assert [b"2 two\n"] == list(ledger.again())
    assert b"" == ledger.down(b"- 2 \n")
    assert (0, []) == (ledger.unsettled, list(ledger.again()))


def test_an_answer_comes_once() -> None:
    """What settles a line that is settled already is not for the editor, also in one block; its cursor counts."""
    ledger = Ledger()
    ledger.up([b"one"])
    assert b"a\n" == ledger.down(b"s:1 1 a\ns:2 1 a\n")
    assert b"" == ledger.down(b"s:3 1 a\n")
    assert [b"next=2", b"session=s 3 -"] == list(ledger.hello())


def test_set_up_lines_are_kept() -> None:
    """A set-up line is sent again though it is settled, until its session has another or is closed."""
    ledger = Ledger()
    ledger.up([b"initialize", b"new", b"load", b"close"])
    assert b"i\nn\n" == ledger.down(b"- 1* i\ns:0 2+ n\n")
    assert [b"next=5", b"session=s 0 2"] == list(ledger.hello())
    assert b"" == ledger.down(b"- 1* i\ns:4 2+ n\n")
    assert [b"1 initialize\n", b"2 new\n", b"3 load\n", b"4 close\n"] == list(ledger.again())
    assert b"l\n" == ledger.down(b"s:9 3+ l\n")
    assert [b"next=5", b"session=s 9 3"] == list(ledger.hello())
    assert b"c\n" == ledger.down(b"s:x 4 c\n")
    assert ([b"next=5"], [b"1 initialize\n"]) == (list(ledger.hello()), list(ledger.again()))
    assert 0 == ledger.unsettled


def test_what_is_settled_while_it_waits_to_be_sent_again_is_left_out() -> None:
    """Lines are sent again one by one; the daemon may settle one of them before its turn comes."""
    ledger = Ledger()
    ledger.up([b"a", b"b"])
    again = ledger.again()
    assert b"1 a\n" == next(again)
    ledger.down(b"- 2 done\n")
    assert [] == list(again)


def test_texts_are_passed_on_as_they_are() -> None:
    """What stands behind the prefix is not looked at: blanks, carriage returns and bytes that are no UTF-8 stay."""
    ledger = Ledger()
    assert b" x \r\n- - -\n\xff\n" == ledger.down(b"- -  x \r\n- - - - -\na:b:7 - \xff\n- - \n")
    assert [b"next=1", b"session=a:b 7 -"] == list(ledger.hello())


def test_a_run_is_passed_on_as_a_whole() -> None:
    """The lines behind one prefix are the editor's with all that is in them, and its cursor counts when the last is there."""
    ledger = Ledger()
    block = b"s:1 - a\nr:r9.2 =8 \n- 1 b\n\n\ns:2 - c\n"
    for end in range(len(block)):
        part = Ledger()
        told = part.down(block[:end])
        assert told + part.down(part.rest + block[end:]) == ledger.down(block) == b"a\n- 1 b\n\n\nc\n"
        assert list(ledger.hello()) == list(part.hello())
    assert b"a\n" == ledger.down(b"s:4 - a\nr:r9.3 =8 \nabc\nefg")
    assert b"r:r9.3 =8 \nabc\nefg" == ledger.rest
    assert [b"next=1", b"session=s 4 -", b"session=r r9.2 -"] == list(ledger.hello())


@pytest.mark.parametrize("block", [b"\n", b"x\n", b"- -\n", b"- x y\n", b"- + y\n", b"- = \n", b"- =-4 \nabc\n", b"- =x \n"])
def test_a_line_without_prefix_is_an_error(block: bytes) -> None:
    """What is not of this protocol is told apart from what is."""
    with pytest.raises(ValueError, match=r"unpack|int"):
        Ledger().down(block)

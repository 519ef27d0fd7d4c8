from __future__ import annotations

import itertools

import pytest

from web.flow import BOX_HEIGHT, BOX_WIDTH, Node, flow

P, T = Node("p", "producer", "Poll"), Node("t", "topic", "mail")
U, C = Node("u", "topic", "rows"), Node("c", "consumer", "Sort")


@pytest.mark.parametrize(
    ("links", "wanted"),
    [
        ([("p", "t"), ("t", "c"), ("c", "u")], {"p": 0, "t": 1, "c": 2, "u": 3}),
        # What also comes from the left stays beyond the farthest.
        ([("p", "t"), ("t", "c"), ("c", "u"), ("p", "u")], {"p": 0, "t": 1, "c": 2, "u": 3}),
        # A consumer that publishes to its own topic.
        ([("p", "t"), ("t", "c"), ("c", "t"), ("c", "u")], {"p": 0, "t": 1, "c": 2, "u": 3}),
        ([("t", "c"), ("c", "t")], {"p": 0, "t": 0, "c": 1, "u": 0}),
    ],
)
def test_everything_is_right_of_what_it_gets_events_from(
    links: list[tuple[str, str]], wanted: dict[str, int]
) -> None:
    boxes = flow([P, T, C, U], links).boxes
    xs = sorted({box.x for box in boxes})
    assert {box.node.key: xs.index(box.x) for box in boxes} == wanted


def test_boxes_do_not_overlap_and_are_inside() -> None:
    many = [Node(f"t{number}", "topic", f"topic {number}") for number in range(5)]
    links = [("p", node.key) for node in many] + [(node.key, "c") for node in many] + [("c", "t0")]
    drawn = flow([P, C, *many], links)
    for one, other in itertools.combinations(drawn.boxes, 2):
        assert abs(one.x - other.x) >= BOX_WIDTH or abs(one.y - other.y) >= BOX_HEIGHT
    for box in drawn.boxes:
        assert 0 <= box.x <= drawn.width - BOX_WIDTH
        assert 0 <= box.y <= drawn.height - BOX_HEIGHT
    assert len(drawn.arrows) == len(links)


def test_it_is_told_in_words() -> None:
    drawn = flow([P, T, C, U], [("p", "t"), ("t", "c"), ("c", "u")])
    assert drawn.label == "Event flow: Poll publishes to mail; Sort consumes mail and publishes to rows."
    assert flow([], []).label == "This workflow has no handlers."


def test_links_to_what_is_not_drawn_are_left_out() -> None:
    assert len(flow([P, T], [("p", "t"), ("p", "gone"), ("gone", "t")]).arrows) == 1

"""Texts in scripts that are written without spaces between words are found by any part of them."""

import pytest
from django.test import Client

from sessions_app.access.masking import Mask
from sessions_app.finding import hits, search, search_index
from sessions_app.models import Session, SimilarSession
from sessions_app.runtime import similar
from tests import builders

pytestmark = pytest.mark.django_db

# Each with a text, and parts of it, which are written as they stand there.
FOUND = [
    (
        "请帮我退款, 订单CLM-1042, 谢谢",
        ["退款", "帮我退款", "谢谢", "退", "款", "订单", '"退款, 订单clm"', "谢谢 退款"],
    ),
    ("ガラスが割れました。返金してください", ["返金", "ガラスが割れ", "ください", "金して", "い"]),
    ("\U0002b820\U0002b821\U0002b822", ["\U0002b821\U0002b822"]),
    ("ฉันต้องการคืนเงิน", ["คืนเงิน", "ต้องการ"]),
]
PARTS = [(text, part) for text, parts in FOUND for part in parts]


def said(text: str) -> Session:
    history = builders.asked()
    history.user(text)
    while search_index.update():
        pass
    return history.session


@pytest.mark.parametrize("text, part", PARTS)
def test_a_text_without_spaces_is_found_by_each_part_of_it_which_is_marked(text: str, part: str) -> None:
    session = said(text)
    assert search.newest_sessions(part, whole=True) == ([session.pk], False)
    [hit] = hits.in_session(session, part, mask=Mask.none(), whole=True)
    marked = {piece.lower() for piece, is_match in hit.parts if is_match}
    assert marked == ({part.strip('"')} if '"' in part else set(part.split()))


@pytest.mark.parametrize(
    "text, part", [("请帮我退款", "款退"), ("请帮我退款", "请我"), ("你好, 世界", "好世"), ("款CLM", "lm")]
)
def test_what_does_not_stand_together_is_not_found(text: str, part: str) -> None:
    said(text)
    assert search.newest_sessions(part, whole=True) == ([], False)


def test_such_a_part_is_found_in_what_is_remembered_and_sessions_are_compared_by_them(client: Client) -> None:
    session, other = said("请帮我退款"), said("我要求退款")
    builders.memory_entry(session, "她想要退款。")
    client.force_login(builders.user("supervisor"))
    page = client.get(f"/sessions/{session.pk}/memories/", {"q": "退款"}).content.decode()
    assert "她想要退款" in page
    for each in (session, other):
        similar.compare(each.pk)
    assert list(SimilarSession.objects.filter(session=other).values_list("other", flat=True)) == [session.pk]

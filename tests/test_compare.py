"""Any two checkpoints can be compared, also across branches, forks and rewritten contexts."""

import re

import pytest

from sessions_app import actions
from sessions_app.access.masking import HIDDEN, Mask
from sessions_app.desk.pages import compare as compare_page
from sessions_app.desk.pages.compare import MOST
from sessions_app.history import restore
from sessions_app.models import Branch, Checkpoint, Message, Session, StateValue
from tests import builders
from tests.pages import text_at

pytestmark = pytest.mark.django_db
NOTHING_HIDDEN = Mask.none()


def compare(left, right, mask=NOTHING_HIDDEN, whole=True):
    return compare_page.compare(left, right, mask, whole=whole)


def last(session_or_branch):
    branch = session_or_branch if isinstance(session_or_branch, Branch) else session_or_branch.branch
    checkpoint = restore.last_visible(Checkpoint, branch)
    assert checkpoint is not None
    return checkpoint


def shown(comparison):
    """The lines, as kind and texts."""
    return [
        (line.kind, line.left.text if line.left else "", line.right.text if line.right else "")
        if not line.folded
        else line.folded
        for line in comparison.lines
    ]


def parts(line, side):
    message = getattr(line, side)
    assert message is not None
    return message.parts


def by_name(keys):
    return {key.name: (key.kind, key.left, key.right) for key in keys}


def test_a_checkpoint_and_itself():
    session = builders.done()
    comparison = compare(last(session), last(session))
    assert comparison.lines == []
    assert comparison.shared == Message.objects.count()
    assert {key.kind for key in comparison.numbers} == {"same"}


def test_an_earlier_and_a_later_checkpoint_of_one_branch():
    session = builders.done()
    start = Checkpoint.objects.get(kind="start")
    comparison = compare(start, last(session))
    assert comparison.shared == 2
    assert shown(comparison) == [
        ("added", "", 'I look that up.\nlookup_policy(policy="POL-7")'),
        ("added", "", '{"policy": "POL-7", "status": "active"}'),
        ("added", "", "Yes, POL-7 covers your windscreen."),
    ]
    backwards = compare(last(session), start)
    assert [line.kind for line in backwards.lines] == ["removed"] * 3
    assert by_name(comparison.numbers)["number of the step"] == ("changed", "0", "2")
    assert by_name(comparison.numbers)["prompt tokens"] == ("added", "", "240")


def replied(session, *replies):
    """A session at a later checkpoint, after these replies."""
    history = builders.History.of(session, step=2)
    for text in replies:
        history.reply(text)
    return history.checkpoint("step")


def test_a_rewound_branch_and_the_discarded_one():
    session = builders.rewound()
    discarded = last(Branch.objects.get(session=session, number=1))
    again = replied(session, "No, POL-7 covers your windscreen only in summer.", "Is it summer?")
    comparison = compare(discarded, again)
    assert comparison.shared == 4
    changed, added = comparison.lines
    assert (changed.kind, added.kind) == ("changed", "added")
    assert parts(changed, "left") == [
        ("Yes", True),
        (", POL-7 covers your windscreen", False),
        (".", False),
    ]
    assert (
        "".join(text for text, _ in parts(changed, "right"))
        == "No, POL-7 covers your windscreen only in summer."
    )
    assert [text for text, differs in parts(changed, "right") if differs] == ["No", " only in summer"]


def test_a_fork_and_its_source():
    source = builders.done()
    checkpoint = Checkpoint.objects.get(branch=source.branch, kind="step")
    fork = actions.fork(
        actor=builders.SYSTEM, session_id=source.pk, checkpoint_id=checkpoint.pk, reason="Try"
    )
    end = replied(Session.objects.select_related("branch").get(pk=fork.pk), "It does not.")
    comparison = compare(last(source), end)
    assert comparison.shared == 4
    assert shown(comparison) == [("changed", "Yes, POL-7 covers your windscreen.", "It does not.")]


def test_sessions_that_share_nothing_are_aligned_by_their_text():
    left, right = builders.looked_up(), builders.looked_up()
    right.user("And my mirror?")
    right.checkpoint("step")
    comparison = compare(last(left.session), last(right.session))
    assert comparison.shared == 0
    assert [line.kind for line in comparison.lines] == ["same"] * 4 + ["added"]


def test_results_that_lie_in_the_ledger_only_are_compared_too():
    ends = []
    for answer in ("It is covered.", "It is not covered."):
        history = builders.asked()
        history.reply(calls=[("lookup_policy", {"policy": "POL-7"})])
        history.finish(history.calls[0], answer)
        ends.append(history.checkpoint("step"))
    assert not Message.objects.filter(text__contains="covered.").exists()
    assert shown(compare(ends[0], ends[1]))[3:] == [("changed", "It is covered.", "It is not covered.")]


def test_replies_that_differ_only_in_their_calls_are_not_the_same():
    left, right = builders.asked(), builders.asked()
    left.lookup("POL-7")
    right.lookup("POL-8")
    comparison = compare(last(left.session), last(right.session))
    assert [line.kind for line in comparison.lines] == ["same", "same", "changed", "changed"]
    assert [text for text, differs in parts(comparison.lines[2], "left") if differs] == ["7"]


def test_a_question_is_no_changed_answer():
    left, right = builders.asked(), builders.asked()
    left.reply("It is.")
    left.user("Thanks!")
    right.user("And my mirror?")
    comparison = compare(left.checkpoint("step"), right.checkpoint("step"))
    assert shown(comparison)[2:] == [("removed", "It is.", ""), ("changed", "Thanks!", "And my mirror?")]


def test_a_repaired_message_stands_beside_the_one_it_replaces():
    history = builders.looked_up()
    history.lookup("POL-8")
    before = last(history.session)
    result = Message.objects.filter(branch=history.branch, role="tool").earliest("position")
    session = actions.replace_message(
        actor=builders.SYSTEM,
        session_id=history.rest("paused").pk,
        position=result.position,
        text='{"policy": "POL-7", "status": "lapsed"}',
        reason="It had lapsed",
    )
    comparison = compare(before, last(session))
    assert comparison.shared == 3
    changed, rest = comparison.lines
    assert [text for text, differs in parts(changed, "left") if differs] == ["active"]
    assert [text for text, differs in parts(changed, "right") if differs] == ["lapsed"]
    assert rest.folded == 2


def test_a_compacted_context_is_compared_as_the_model_sees_it():
    history = builders.asked()
    for number in range(4):
        history.lookup(f"POL-{number}")
    before = last(history.session)
    system = Message.objects.get(role="system").position
    summary = history.user("Summary: four policies were looked up.")
    last_result = Message.objects.filter(role="tool").latest("position").position
    place = history.session.position + 1
    spans = restore.ranges([system, summary.position, last_result])
    after = history.checkpoint("step", context=spans, context_at=place)
    comparison = compare(before, after)
    assert comparison.shared == 1
    assert [line.kind for line in comparison.lines] == ["changed"] + ["removed"] * 7 + ["same"]
    assert comparison.lines[-1].folded == 1
    history.reply("And on.")
    later = history.checkpoint("step", context_at=place)
    assert shown(compare(after, later)) == [("added", "", "And on.")]
    assert compare(after, later).shared == 3


def test_state_and_numbers_by_key():
    history = builders.asked()
    values = {"kept": [1, 2], "gone": 1, "number": {"$type": "decimal", "value": "1.50"}}
    first = checkpoint(history, values)
    second = checkpoint(history, {"kept": [1, 2], "number": {"$type": "decimal", "value": "2"}, "new": "x"})
    comparison = compare(first, second)
    assert by_name(comparison.keys) == {
        "gone": ("removed", "1", ""),
        "kept": ("same", "[\n  1,\n  2\n]", "[\n  1,\n  2\n]"),
        "new": ("added", "", "x"),
        "number": ("changed", "1.50", "2"),
    }
    assert by_name(comparison.numbers)["context tokens"] == ("same", "70", "70")
    assert [title for title, _ in comparison.tables] == ["State", "Numbers"]


def checkpoint(history, values):
    place = history.session.position + 1
    for key, value in values.items():
        StateValue.objects.create(branch=history.branch, position=place, key=key, value=value)
    return history.checkpoint("step", keys=dict.fromkeys(values, place), counters={"context_tokens": 70})


def test_hidden_values_stay_hidden_and_still_count_as_different():
    left, right = builders.asked(), builders.asked()
    for history, iban in ((left, "DE11"), (right, "DE22")):
        history.reply("Paid to " + iban, [("send_letter", {"iban": iban})])
        history.finish(history.calls[0], {"iban": iban})
        history.checkpoint("step")
    ends = checkpoint(left, {"iban": "DE11"}), checkpoint(right, {"iban": "DE22"})
    comparison = compare(*ends, Mask.of(["iban"], [r"DE\d\d"]))
    assert not [word for word in ("DE11", "DE22") if word in repr((comparison.lines, comparison.keys))]
    assert by_name(comparison.keys)["iban"] == ("changed", HIDDEN, HIDDEN)
    assert [line.kind for line in comparison.lines] == ["same", "same", "changed", "changed"]
    # Who may not reveal the values is not told whether they differ, or a guess could be compared with one.
    comparison = compare(*ends, Mask.of(["iban"], [r"DE\d\d"]), whole=False)
    assert by_name(comparison.keys)["iban"] == ("same", HIDDEN, HIDDEN)
    assert [line.kind for line in comparison.lines] == ["same", "same", "same", "same"]


def test_a_very_long_message_is_shown_changed_as_a_whole():
    left, right = builders.asked(), builders.asked()
    left.reply("word " * 3000)
    right.reply("word " * 2999)
    (line,) = compare(left.checkpoint("step"), right.checkpoint("step")).lines[2:]
    assert [differs for _, differs in parts(line, "left")] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("rewritten", [False, True])
def test_it_costs_the_same_however_long_the_histories_are(rewritten, django_assert_num_queries):
    def pair(steps):
        history = builders.asked()
        for number in range(steps):
            history.lookup(f"POL-{number}")
        first = last(history.session)
        history.lookup("POL-X")
        place = history.session.position + 1
        spans = restore.ranges(m.position for m in Message.objects.filter(branch=history.branch)[1:])
        more = {"context": spans, "context_at": place} if rewritten else {}
        second = history.checkpoint("step", **more)
        return Checkpoint.objects.select_related("branch").in_bulk([first.pk, second.pk])

    for steps in (5, 200):
        first, second = pair(steps).values()
        with django_assert_num_queries(6 if rewritten else 5):
            comparison = compare(first, second)
        assert len(comparison.lines) <= 5


def test_more_than_can_be_shown_is_cut_and_marked_as_cut(client):
    left, right = builders.asked(), builders.asked()
    rows = [Message(branch=right.branch, position=100 + n, role="user", text=f"{n}") for n in range(MOST + 5)]
    Message.objects.bulk_create(rows)
    right.session.position = 1000
    first, second = last(left.session), right.checkpoint("step")
    comparison = compare(first, second)
    assert comparison.cut
    assert len(comparison.lines) == MOST
    assert not compare(first, first).cut
    client.force_login(builders.user("viewer"))
    page = text_at(client, f"/compare/?a={first.pk}&b={second.pk}")
    assert f"Only the first {MOST} differing messages are shown." in page


def test_only_the_differences_are_shown_where_that_is_asked_for(client):
    client.force_login(builders.user("viewer"))
    session = builders.rewound()
    a, b = Checkpoint.objects.filter(branch__session=session).order_by("position")[:2]
    whole = client.get(f"/compare/?a={a.pk}&b={b.pk}").content.decode()
    assert "Only differences" in whole
    assert '<tr class="same">' in whole
    brief = client.get(f"/compare/?a={a.pk}&b={b.pk}&show=differences").content.decode()
    assert "Show everything" in brief
    assert '<tr class="same">' not in brief


def test_the_comparison_says_which_side_is_current_and_which_is_discarded(client):
    client.force_login(builders.user("viewer"))
    session = builders.rewound()
    ends = [
        Checkpoint.objects.visible_on(branch).latest("position").pk
        for branch in (session.branches.get(number=1), builders.branch_of(session))
    ]
    page = client.get(f"/compare/?a={ends[0]}&b={ends[1]}").content.decode()
    assert re.findall(r"<h2>([AB]: [^<]+)</h2>", page) == ["A: discarded history", "B: current history"]
    assert re.findall(r'<th scope="col">([AB]: [^<]+)</th>', page) == ["A: discarded", "B: current"]
    swapped = client.get(f"/compare/?a={ends[1]}&b={ends[0]}").content.decode()
    assert re.findall(r"<h2>([AB]: [^<]+)</h2>", swapped) == ["A: current history", "B: discarded history"]


def test_a_table_without_a_row_is_left_out_of_the_comparison(client):
    client.force_login(builders.user("viewer"))
    end = last(builders.done())
    page = client.get(f"/compare/?a={end.pk}&b={end.pk}").content.decode()
    # Each table has a heading of its own, which a phone shows too.
    assert re.findall(r"<h2 id=[^>]*>([^<]+)</h2>", page) == ["Messages", "Numbers"]
    brief = client.get(f"/compare/?a={end.pk}&b={end.pk}&show=differences").content.decode()
    assert "State and numbers are the same." in brief


@pytest.mark.slow
def test_a_discarded_branch_is_compared_with_the_session_as_it_is_now(client):
    client.force_login(builders.user("operator"))
    session = builders.rewound()
    left = session.branches.get(number=1)
    ends = [
        Checkpoint.objects.visible_on(branch).latest("position").pk
        for branch in (left, builders.branch_of(session))
    ]
    address = f"/sessions/{session.pk}/branches/1/compare/"
    for page in ("", "branches/1/", "undo/", "checkpoints/"):
        assert f'href="{address}"' in client.get(f"/sessions/{session.pk}/{page}").content.decode(), page
    assert client.get(address).headers["Location"] == f"/compare/?a={ends[0]}&b={ends[1]}"
    assert client.get(f"/sessions/{session.pk}/branches/9/compare/").status_code == 404


def test_the_checkpoints_of_discarded_branches_are_listed_too(client):
    client.force_login(builders.user("operator"))
    session = builders.rewound()
    shown = set(Checkpoint.objects.visible_on(builders.branch_of(session)).values_list("pk", flat=True))
    all_of_them = set(Checkpoint.objects.filter(branch__session=session).values_list("pk", flat=True))
    assert all_of_them - shown
    page = client.get(f"/sessions/{session.pk}/checkpoints/").content.decode()
    assert {int(pk) for pk in re.findall(r'name="a"\s+value="(\d+)"', page)} == all_of_them
    assert page.count('title="branch 1">discarded<') == len(all_of_them - shown)


def test_repeated_words_take_no_more_than_a_part_of_what_the_words_of_a_page_may_take():
    words, other_words = ["x "] * 900, ["x ", "y "] * 450
    aligned = compare_page._Aligned(compare_page.MOST_PAIRS)
    replaced = [("replace", 0, 900, 0, 900)]
    assert aligned.of(words, other_words) == replaced
    assert aligned.of(["a ", "b "], ["a ", "c "]) == [("equal", 0, 1, 0, 1), ("replace", 1, 2, 1, 2)]
    assert [aligned.of(words, other_words) for _ in range(5)] == [replaced] * 5
    assert aligned.of(["a ", "b "], ["a ", "c "]) == [("replace", 0, 2, 0, 2)]

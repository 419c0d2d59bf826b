"""A view to which events were added one revision after the other is the view of what is there."""

from hypothesis import given
from hypothesis import strategies as st

from easyscale.rendezvous.store import Entry, View

KEYS = st.sampled_from(["/a", "/b", "/c/1", "/c/2", "/c/", "/d"])
REVISIONS = st.lists(st.dictionaries(KEYS, st.one_of(st.none(), st.text(max_size=2))), max_size=12)


def entry(key: str, value: str, revision: int) -> Entry:
    return Entry(key, value, 1, revision, None)


@given(REVISIONS)
def test_folding_events_gives_what_a_list_would(revisions: list[dict[str, str | None]]) -> None:
    there: dict[str, Entry] = {}
    folded = View.of(1, {})
    kept = []
    for revision, changes in enumerate(revisions, start=2):
        events = {
            key: None if value is None else entry(key, value, revision)
            for key, value in changes.items()
        }
        folded = folded.after(revision, events)
        for key, one in events.items():
            if one is None:
                there.pop(key, None)
            else:
                there[key] = one
        listed = View.of(revision, there)
        kept.append((folded, listed))
        assert list(folded.entries) == sorted(folded.entries)
    # Views are facts: none changes with what is folded into its successor.
    assert [one for one, _ in kept] == [two for _, two in kept]

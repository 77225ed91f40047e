"""Where destinations wait: one whose mail leaves from two pools waits at two wait lists, and holds up nothing at either."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.egress.paths import UNTIL_EVENT, Limit, Refusal
from zonemta_py.egress.waiting import (
    LIST_TURNS,
    RELEASED_AT_ONCE,
    TIMERS_MIN,
    WaitKey,
    WaitLists,
    ZoneWaits,
)

ONE, TWO = WaitKey("zone:one", "big"), WaitKey("zone:two", "big")
LIMITED = WaitKey("limited:one", "big")
ADDRESS = "127.0.0.1"
REFUSAL = Refusal(Limit.PROVIDER_SESSIONS, UNTIL_EVENT, "full")


class Stand:
    """The places of a zone, with the destinations that have mail, and those that were woken."""

    def __init__(self, *with_mail: str, wait_lists: WaitLists | None = None) -> None:
        self.with_mail = set(with_mail)
        self.woken: list[str] = []
        self.counted = Counter[str]()
        self.wait_lists = wait_lists or WaitLists(lambda: None)
        self.places = ZoneWaits(self.wait_lists, self.ready, self.count)

    def ready(self, destination: str) -> bool:
        if destination in self.with_mail:
            self.woken.append(destination)
        return destination in self.with_mail

    def count(self, provider: str, change: int) -> None:
        self.counted[provider] += change

    def refuse(self, destination: str, *places: WaitKey) -> None:
        for place in places:
            if self.places.may_try(destination, place):
                self.places.wait(destination, place, REFUSAL, 0)

    def on_turn(self, place: WaitKey) -> str:
        wait_list = self.wait_lists.get(place)
        return wait_list.on_turn if wait_list is not None else ""


def test_room_for_one_pool_leaves_the_place_for_the_other() -> None:
    stand = Stand("a", "b")
    stand.refuse("a", ONE, TWO)
    stand.refuse("b", ONE)
    assert stand.counted["big"] == 3
    stand.wait_lists.capacity_at_provider("big")
    assert (stand.on_turn(ONE), stand.on_turn(TWO)) == ("a", "a")
    assert stand.places.may_try("a", ONE)
    stand.places.granted("a", ONE)
    assert stand.on_turn(ONE) == "b", "each that gets a permit wakes the next"
    assert stand.on_turn(TWO) == "a"
    stand.refuse("a", TWO)
    assert stand.on_turn(TWO) == ""
    assert stand.places.wait_list("a", ONE) is None
    assert stand.places.wait_list("a", TWO) is not None


def test_a_place_for_which_there_is_no_mail_any_more_is_given_up() -> None:
    """The next one there has its turn, also when the destination was awake at that wait list."""
    stand = Stand("a", "b")
    stand.refuse("a", ONE, TWO)
    stand.refuse("b", TWO)
    stand.wait_lists.capacity_at_provider("big")
    stand.places.keep("a", [ONE])
    assert stand.on_turn(TWO) == "b"
    assert [place for name, place, _ in stand.places.waiting() if name == "a"] == [ONE]
    stand.places.leave("a")
    assert ("zone:one", "big") not in [place for _, place, _ in stand.places.waiting()]
    assert stand.counted["big"] == 1


def test_one_without_mail_is_forgotten_when_it_would_have_its_turn() -> None:
    """It may come again later, behind the others."""
    stand = Stand("b")
    stand.refuse("a", ONE, TWO)
    stand.refuse("b", ONE)
    stand.wait_lists.capacity_at_provider("big")
    assert stand.woken == ["b"]
    assert stand.places.wait_list("a", ONE) is None
    assert stand.counted["big"] == 1
    stand.with_mail.add("a")
    assert stand.places.may_try("a", TWO), "none waits there"
    stand.refuse("b", ONE)
    assert not stand.places.may_try("a", ONE), "b waits there"
    stand.places.granted("b", ONE)
    assert stand.on_turn(ONE) == "a"


def test_nothing_limits_any_more() -> None:
    stand = Stand("a", "b")
    stand.refuse("a", ONE, TWO)
    stand.refuse("b", ONE, TWO)
    stand.places.granted_all("a")
    assert (stand.on_turn(ONE), stand.on_turn(TWO)) == ("b", "b")
    stand.places.granted_all("b")
    assert len(stand.places) == 0
    assert stand.wait_lists.all() == []
    assert stand.counted["big"] == 0


def test_turns_that_are_not_used_go_to_the_next_one() -> None:
    """It keeps the places where it only waits."""
    stand = Stand("a", "b")
    stand.refuse("a", ONE, TWO)
    stand.refuse("b", ONE)
    wait_list = stand.wait_lists.get(ONE)
    assert wait_list is not None
    wait_list.on_turn = wait_list.waiting.popitem(last=False)[0]
    stand.places.drop_turns("a")
    assert stand.on_turn(ONE) == "b"
    assert [place for name, place, _ in stand.places.waiting() if name == "a"] == [TWO]


def test_each_has_its_turn_however_the_others_come_back() -> None:
    """Room for one at a time: one that gets it stands in line again, and wakes one that finds no room."""
    names = [f"d{number}" for number in range(5)]
    stand = Stand(*names)
    for name in names:
        stand.refuse(name, ONE)
    served: list[str] = []
    for _ in range(20):
        stand.wait_lists.capacity_at_provider("big")
        name = stand.on_turn(ONE)
        served.append(name)
        stand.places.granted(name, ONE)
        stand.places.wait(stand.on_turn(ONE), ONE, REFUSAL, 0)  # the next one has no room
        stand.refuse(name, ONE)
    assert served == names * 4


def test_pools_share_the_sessions_of_a_provider() -> None:
    """The wait list of one pool does not keep that of another waiting until nothing waits there."""
    stand = Stand("a", "b", "c")
    for name, place in ("a", ONE), ("b", ONE), ("c", TWO):
        stand.refuse(name, place)
    first: list[str] = []
    for _ in range(3 * LIST_TURNS):
        stand.wait_lists.capacity_at_provider("big")  # room for one: who was woken first has it
        first.append(name := stand.woken[0])
        place = TWO if name == "c" else ONE
        stand.places.granted(name, place)
        for each in names_awake(stand):
            stand.places.wait(each[0], each[1], REFUSAL, 0)
        stand.refuse(name, place)
        stand.woken.clear()
    assert 0 < first.count("c") < 3 * LIST_TURNS
    assert first.count("a") > 0
    assert first.count("b") > 0


def test_one_that_is_refused_alone_passes_its_turn_and_waits_for_its_own_time() -> None:
    """The time of the wait list stays that of its limit."""
    stand = Stand("a", "b")
    stand.refuse("a", ONE)
    stand.refuse("b", ONE)
    stand.wait_lists.capacity_at_provider("big")
    assert stand.on_turn(ONE) == "a"
    alone = Refusal(Limit.PROVIDER_CONNECT_RATE, 500, "no session", is_alone=True)
    stand.places.wait("a", ONE, alone, 0)
    assert stand.on_turn(ONE) == "b"
    assert stand.places.is_at_own_list("a", ONE)
    wait_list = stand.places.wait_list("a", ONE)
    assert wait_list is not None
    assert wait_list.refusal == alone
    stand.places.keep("a", [ONE])
    stand.wait_lists.capacity_at_provider("big")
    assert stand.woken == ["a", "b"], "room at the provider is none for it"
    stand.wait_lists.run_due(500)
    assert stand.woken == ["a", "b", "a"]
    assert not stand.places.is_at_own_list("a", ONE)
    assert stand.counted == {"big": 1}


def test_what_an_operator_resumes_leaves_at_once_and_in_slices() -> None:
    names = [f"d{number}" for number in range(RELEASED_AT_ONCE + 3)]
    stand, place = Stand(*names), WaitKey("zone", "", "zone:zone")
    for name in names:
        stand.places.wait(name, place, Refusal(Limit.OPERATOR, 1000, "stopped"), 0)
    wait_list = stand.wait_lists.get(place)
    assert wait_list is not None
    stand.wait_lists.set_refusal(wait_list, Refusal(Limit.OPERATOR, 700, "stopped"))
    stand.wait_lists.run_due(700)
    assert len(stand.woken) == RELEASED_AT_ONCE
    stand.wait_lists.run_due(701)
    assert stand.woken == names
    assert stand.wait_lists.get(place) is None
    assert len(stand.places) == 0


def names_awake(stand: Stand) -> list[tuple[str, WaitKey]]:
    return [(stand.on_turn(place), place) for place in (ONE, TWO) if stand.on_turn(place)]


def test_timers_of_what_does_not_wait_any_more_are_forgotten() -> None:
    """Wait lists and address queues come and go while an address has no room until midnight."""
    stand = Stand("d")
    at = (("127.0.0.1", 86_400_000),)
    refusal = Refusal(Limit.ADDRESS_RATE, 86_400_000, "used up", at, others_ms=86_400_000)
    for now_ms in range(3 * TIMERS_MIN):
        stand.places.wait("d", ONE, refusal, now_ms)
        stand.places.granted("d", ONE)
    assert len(stand.wait_lists._timers) <= TIMERS_MIN + 10
    stand.places.wait("d", ONE, refusal, 80_000_000)
    stand.wait_lists.run_due(86_400_000)
    assert stand.woken == ["d"], "those that are used are kept"


def test_what_waits_for_the_session_of_an_address_at_another_provider() -> None:
    stand = Stand("d")
    at = (("127.0.0.1", UNTIL_EVENT),)
    full = Refusal(Limit.ADDRESS_SESSIONS, UNTIL_EVENT, "full", at, for_session=True)
    stand.places.wait("d", ONE, full, 0)
    assert stand.wait_lists.wait_for_session("other", "127.0.0.1")
    assert not stand.wait_lists.wait_for_session("other", "127.0.0.2")
    stand.places.granted("d", ONE)
    assert not stand.wait_lists.wait_for_session("other", "127.0.0.1")


FULL = Refusal(Limit.ADDRESS_SESSIONS, UNTIL_EVENT, "full", ((ADDRESS, UNTIL_EVENT),), for_session=True)


def test_a_zone_that_can_serve_nothing_holds_up_no_other_at_an_address() -> None:
    """Its own rate or connections are used up: it keeps its turn, and the others have the room."""
    limited = Stand("a", "b")
    other = Stand("c", "d", wait_lists=limited.wait_lists)
    for name in ("a", "b"):
        limited.places.wait(name, LIMITED, FULL, 0)
    for name in ("c", "d"):
        other.places.wait(name, ONE, FULL, 0)
    limited.wait_lists.capacity_at_address(ADDRESS)
    assert (limited.woken, other.woken) == (["a"], [])
    limited.places.pass_on()
    assert (limited.woken, other.woken) == (["a"], ["c"])
    for name, following in ("c", "d"), ("d", "c"), ("c", "d"):
        other.places.granted(name, ONE)
        other.places.wait(name, ONE, FULL, 0)
        limited.wait_lists.capacity_at_address(ADDRESS)
        assert other.on_turn(ONE) == following
    assert limited.woken == ["a"], "it is not woken again and again"
    assert limited.wait_lists.waiting_for(ADDRESS) == 2, (
        "one in each wait list, beside those that have a turn"
    )
    assert limited.places.may_try("a", LIMITED)
    limited.places.granted("a", LIMITED)
    assert limited.on_turn(LIMITED) == "b", "the next one has its turn"
    limited.places.wait("b", LIMITED, FULL, 0)
    other.places.wait(other.on_turn(ONE), ONE, FULL, 0)
    limited.wait_lists.capacity_at_address(ADDRESS)
    assert (limited.on_turn(LIMITED), other.on_turn(ONE)) == ("", "d")
    other.places.granted("d", ONE)
    assert limited.on_turn(LIMITED) == "b", "it stands in line again"


def test_gates_share_the_room_of_an_address_in_turn() -> None:
    """Whatever they do with it: each place in line is kept, and none is lost."""
    first = Stand("a", "b", "c")
    second = Stand("d", "e", wait_lists=first.wait_lists)
    stands = {LIMITED: first, ONE: second}
    for place, stand in stands.items():
        for name in sorted(stand.with_mail):
            stand.places.wait(name, place, FULL, 0)
    served: list[str] = []
    for _ in range(12):
        first.wait_lists.capacity_at_address(ADDRESS)
        [(place, stand, name)] = [
            (place, stand, stand.on_turn(place))
            for place, stand in stands.items()
            if stand.on_turn(place)
        ]
        served.append(name)
        stand.places.granted(name, place)  # which gives the room that is left to the other one
        [(other, awake)] = [
            (each, stands[each].on_turn(each)) for each in stands if stands[each].on_turn(each)
        ]
        stands[other].places.wait(awake, other, FULL, 0)
        stand.places.wait(name, place, FULL, 0)
    assert {served.count(name) for name in "abc"} == {2}
    assert {served.count(name) for name in "de"} == {3}


class Addresses:
    """Two zones with three destinations each at two source addresses, which have no room at first. A zone that is full starts nothing."""

    def __init__(self) -> None:
        wait_lists = WaitLists(lambda: None)
        self.wait_lists = wait_lists
        self.zones = {
            zone: Stand(*(f"{zone}{n}" for n in range(3)), wait_lists=wait_lists) for zone in "pq"
        }
        self.full: set[str] = set()
        self.free = {"127.0.0.1": 0, "127.0.0.2": 0}

    def place(self, name: str) -> WaitKey:
        return WaitKey(f"{name[0]}:one", "small" if name[1] == "0" else "big")

    def attempt(self, name: str) -> None:
        """A worker would start: it uses the first address with room, or waits for both."""
        place, places = self.place(name), self.zones[name[0]].places
        if name[0] in self.full or not places.may_try(name, place):
            return
        found = next((each for each, free in self.free.items() if free), None)
        if found is None:
            at = tuple((each, UNTIL_EVENT) for each in self.free)
            places.wait(name, place, FULL._replace(at=at), 0)
        else:
            self.free[found] -= 1
            places.granted(name, place)

    def settle(self) -> None:
        """What the loop does: what has a turn tries, and a zone that can start nothing passes on what it is offered."""
        for _ in range(50):
            turns = [wait_list.on_turn for wait_list in self.wait_lists.all() if wait_list.on_turn]
            for name in turns:
                self.attempt(name)
            for zone in self.full:
                self.zones[zone].places.pass_on()
            if turns == [wait_list.on_turn for wait_list in self.wait_lists.all() if wait_list.on_turn]:
                return
        raise AssertionError("it does not end")

    def check(self) -> None:
        """A wait list stands in line unless it has a turn, and no room is left for which a zone waits that can serve."""
        for wait_list in self.wait_lists.all():
            for address, _ in wait_list.refusal.at if wait_list.refusal is not None else ():
                line = self.wait_lists._queues[address]
                assert (wait_list in line.wait_lists) != (wait_list in line.with_turn)
                assert wait_list.on_turn or wait_list in line.wait_lists
        waiting = {name[0] for stand in self.zones.values() for name, _, _ in stand.places.waiting()}
        assert not any(self.free.values()) or waiting <= self.full


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("attempt"), st.sampled_from([f"{zone}{n}" for zone in "pq" for n in range(3)])
            ),
            st.tuples(st.just("end"), st.sampled_from(["127.0.0.1", "127.0.0.2"])),
            st.tuples(st.sampled_from(["full", "free"]), st.sampled_from("pq")),
        ),
        max_size=40,
    )
)
def test_room_of_an_address_reaches_what_can_use_it(steps: list[tuple[str, str]]) -> None:
    stage = Addresses()
    for stand in stage.zones.values():
        for name in sorted(stand.with_mail):
            stage.attempt(name)
    for step, what in steps:
        match step:
            case "attempt":
                stage.attempt(what)
            case "end":
                stage.free[what] += 1
                stage.wait_lists.capacity_at_address(what)
            case "full":
                stage.full.add(what)
            case "free":
                stage.full.discard(what)
        stage.settle()
        stage.check()

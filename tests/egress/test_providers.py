"""Which provider a domain belongs to."""

from zonemta_py.config.providers import ProviderLimits, ProviderSettings, ProviderTable, own_provider
from zonemta_py.egress.providers import FRESH_S, NOT_FOUND_S, PARTIAL_S, Providers
from zonemta_py.egress.sources import common_families
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, Host, MxAnswer, best

TABLE = ProviderTable(
    {
        "google": ProviderSettings(("*.google.com", "*.googlemail.com"), ("gmail.com",)),
        "big": ProviderSettings(("*.big.example",)),
    }
)

LIMITED = ProviderLimits(sessions=1)


def answer(*hosts: str) -> MxAnswer:
    return MxAnswer(hosts, has_ipv4=True, has_ipv6=False)


def test_by_all_hosts_of_the_best_preference() -> None:
    assert TABLE.of("a.example", ("aspmx.l.google.com", "mx.GOOGLEMAIL.com.")) == "google"
    assert (
        TABLE.of("a.example", ("mx.big.example", "aspmx.l.google.com"))
        == "aspmx.l.google.com,mx.big.example"
    )
    assert TABLE.of("a.example", ("big.example",)) == "big.example", "the pattern wants a name below"
    assert TABLE.of("gmail.com", ("elsewhere.example",)) == "google"
    assert TABLE.of("a.example", ()) == "a.example"


def test_a_set_of_hosts_is_a_provider() -> None:
    """Whatever their order; a long one has a short name."""
    assert own_provider(("b.example", "a.example")) == own_provider(("a.example", "b.example"))
    many = own_provider(tuple(f"mx{n}.hosting.example" for n in range(20)))
    assert len(many) < 80
    assert many.startswith("mx0.hosting.example,+19:")


def test_the_best_preference() -> None:
    hosts = [
        Host(10, "a.example", ("192.0.2.1",)),
        Host(20, "c.example", ("2001:db8::1",)),
        Host(10, "b.example", ()),
    ]
    assert best(hosts) == MxAnswer(("a.example", "b.example"), has_ipv4=True, has_ipv6=True)


def test_a_look_up_that_failed_may_have_found_addresses_of_the_other_family() -> None:
    hosts = [Host(10, "a.example", ("2001:db8::1",), is_whole=False), Host(20, "b.example", ())]
    assert best(hosts) == MxAnswer(("a.example",), has_ipv4=True, has_ipv6=True, is_whole=False)


def test_what_is_known_of_a_domain() -> None:
    """Known at once by the table, else after a look-up; asked again after a while, and used meanwhile."""
    known = Providers(TABLE)
    assert (known.get("gmail.com"), known.get("a.example")) == ("google", None)
    assert known.learn("a.example", answer("mx.big.example"), 0.0) == "big"
    assert (known.get("a.example"), known.families("a.example")) == ("big", "ipv4")
    assert not known.is_stale("a.example", FRESH_S - 1)
    assert known.is_stale("a.example", FRESH_S + 1)
    assert known.get("a.example") == "big"
    known.configure(ProviderTable({}))
    assert known.get("a.example") == "mx.big.example", (
        "found again from the hosts: mail may be under way"
    )
    known.configure(TABLE)
    assert known.get("a.example") == "big"
    assert known.learn("b.example", NO_MX_ANSWER, 0.0) == "b.example"


def test_a_look_up_that_fails_is_repeated_soon() -> None:
    """What was known stays: mail to a provider must not leave without its limits because a name server is silent."""
    known = Providers(TABLE)
    assert known.learn("a.example", answer("mx.big.example"), 0.0) == "big"
    assert known.learn("a.example", NO_MX_ANSWER, FRESH_S + 1) == "big"
    assert known.get("a.example") == "big"
    assert known.is_stale("a.example", FRESH_S + 2 + NOT_FOUND_S)
    known.learn("b.example", NO_MX_ANSWER, 0.0)
    assert not known.is_stale("b.example", NOT_FOUND_S)
    assert known.is_stale("b.example", NOT_FOUND_S + 1)
    assert not known.is_not_found("b.example", NOT_FOUND_S)
    assert known.is_not_found("b.example", NOT_FOUND_S + 1), "looked up again before its mail leaves"
    assert known.learn("b.example", answer("mx.big.example"), NOT_FOUND_S + 1) == "big"
    assert not known.is_not_found("b.example", NOT_FOUND_S + FRESH_S)
    assert not known.is_not_found("a.example", 3 * FRESH_S), "its hosts are known"


def test_an_answer_that_is_not_whole_is_repeated_soon() -> None:
    known = Providers(TABLE)
    partial = MxAnswer(("mx.big.example",), True, True, is_whole=False)
    assert known.learn("a.example", partial, 0.0) == "big"
    assert known.is_stale("a.example", PARTIAL_S + 1)
    known.learn("a.example", answer("mx.big.example"), PARTIAL_S + 1)
    assert not known.is_stale("a.example", FRESH_S)


def test_a_reload_names_domains_when_they_are_asked_for() -> None:
    """Also by an answer without hosts; other limits change no name."""
    known = Providers(TABLE)
    for name in "ab":
        known.learn(f"{name}.example", answer("mx.big.example"), 0.0)
    limited = {**TABLE.providers, "big": ProviderSettings(("*.big.example",), limits=LIMITED)}
    known.configure(ProviderTable(limited))
    assert known._version == 0
    known.configure(ProviderTable({}))
    assert known.learn("a.example", NO_MX_ANSWER, 1.0) == "mx.big.example"
    assert known.get("b.example") == "mx.big.example"
    known.configure(TABLE)
    assert [known.get(f"{name}.example") for name in "ab"] == ["big", "big"]


def test_families() -> None:
    assert common_families("both", "both") == ("ipv4", "ipv6")
    assert common_families("ipv4", "both") == ("ipv4",)
    assert common_families("both", "ipv6") == ("ipv6",)
    assert common_families("ipv4", "ipv6") == ("ipv4",), "what the provider says counts"

"""Files of classification rules."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.load import to_yaml
from zonemta_py.config.reply_rules import SHIPPED, load_rules, make_classifier
from zonemta_py.core.errors import ConfigError
from zonemta_py.smtp.reply_class import ReplyClass


def written(directory: Path, text: str) -> Path:
    path = directory / "own.yaml"
    path.write_text(text)
    return path


def test_own_rules_are_asked_first(tmp_path: Path) -> None:
    path = written(
        tmp_path, "rules:\n- class: policy\n  pattern: user unknown\n  code: [550, 5xx]\n  phase: rcpt\n"
    )
    found = make_classifier(path).explain("rcpt", 550, "5.1.1", "User unknown")
    assert found.reply_class is ReplyClass.POLICY
    assert found.rule is not None
    assert (found.rule.source, found.rule.line) == (str(path), 2)
    shipped = make_classifier(path).explain("dot", 550, "5.1.1", "User unknown")
    assert shipped.reply_class is ReplyClass.INVALID_RECIPIENT
    assert shipped.rule is not None and shipped.rule.source == str(SHIPPED)


@pytest.mark.parametrize(
    "text, where, words",
    [
        ("rules: [{pattern: x}]", "1: rules[0].class", "a class is needed, allowed: invalid_recipient"),
        ("rules:\n- class: blockd\n  code: 550", "2: rules[0].class", "found 'blockd', allowed: "),
        ("rules:\n- {class: policy}", "2: rules[0]", "a condition is needed"),
        (
            "rules:\n- class: policy\n  pattern: [ok, '(']",
            "3: rules[0].pattern",
            "'(' is no pattern of RE2",
        ),
        ("rules: [{class: policy, pattern: 'a(?=b)'}]", "1: rules[0].pattern", "invalid perl operator"),
        ("rules: [{class: policy, pattern: 'a*'}]", "1: rules[0].pattern", "every text"),
        (
            "rules: [{class: policy, code: 600}]",
            "1: rules[0].code",
            "found '600', expected a code such as",
        ),
        (
            "rules: [{class: policy, status: 5.7}]",
            "1: rules[0].status",
            "found '5.7', expected a status",
        ),
        ("rules: [{class: policy, pattern: 'a {b}'}]", "1: rules[0].pattern", "none of the words above"),
        ("words: {b: 'x{c}', c: y}\nrules: []", "1: words.b", "'{c}' is none of the words above: none"),
        ("rules: [{class: policy, pattern: a, unless: '('}]", "1: rules[0].unless", "no pattern of RE2"),
        ("rules: [{class: policy, code: 550, unless: a}]", "1: rules[0].unless", "a pattern beside it"),
        ("rules: [{class: policy, phase: end}]", "1: rules[0].phase", "expected one of connect, mail"),
        ("rules: [{class: policy, patern: x}]", "1: rules[0].patern", "did you mean 'pattern'?"),
        ("rule: []", "1: rule", "did you mean 'rules'?"),
        ("rules: {", "1", "not YAML"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, text: str, where: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_rules(path)
    assert str(caught.value).startswith(f"{path}:{where}")
    assert words in str(caught.value)


def test_words_that_patterns_share(tmp_path: Path) -> None:
    """A word may use those above it, and an alternative in it ends with it."""
    path = written(
        tmp_path,
        "words: {thing: 'gate|door', old: 'old {thing}'}\n"
        "rules:\n- {class: policy, pattern: 'shut {old}s', unless: '{thing}way{1}'}\n",
    )
    classifier = make_classifier(path)
    assert load_rules(path)[0].patterns == ("shut (?:old (?:gate|door))s",)
    assert classifier.classify("dot", 299, "", "shut old doors") is ReplyClass.POLICY
    assert classifier.classify("dot", 299, "", "doors shut") is ReplyClass.OTHER
    assert classifier.classify("dot", 299, "", "shut old doors, gateway") is ReplyClass.OTHER


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_rules(tmp_path / "none.yaml")


WORDS = st.one_of(
    st.text(max_size=8), st.integers(0, 999), st.sampled_from(["550", "4xx", "5.7.1", "rcpt"])
)
ENTRIES = st.fixed_dictionaries(
    {"class": st.sampled_from([*map(str, ReplyClass), "none"])},
    optional={
        key: st.one_of(WORDS, st.lists(WORDS, max_size=3))
        for key in ("pattern", "unless", "code", "status", "phase")
    },
)


@given(st.lists(ENTRIES, max_size=4))
def test_any_document_is_loaded_or_refused(
    tmp_path_factory: pytest.TempPathFactory, entries: list[object]
) -> None:
    """A file that loads gives rules that classify; every other one is a ConfigError."""
    path = written(tmp_path_factory.mktemp("rules"), to_yaml({"rules": entries}))
    try:
        rules = load_rules(path)
    except ConfigError as exc:
        assert str(exc).startswith(f"{path}:")
        return
    assert len(rules) == len(entries)
    assert make_classifier(path).classify("rcpt", 550, "5.7.1", "x") in list(ReplyClass)

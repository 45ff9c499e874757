from bench.mutant_kinds import kind


def test_a_sentence_that_reads_otherwise_is_for_people():
    assert kind(['-    raise Late("too late")', '+    raise Late("XXtoo lateXX")']) == "words"
    assert kind(['-    raise Late(f"late by {a + b} s")', '+    raise Late(f"late by {a - b} s")']) == "words"


def test_a_name_or_key_that_reads_otherwise_needs_a_test():
    assert kind(['-    row = {"step": 1}', '+    row = {"STEP": 1}']) == "open"


def test_a_comparison_that_differs_where_both_sides_are_equal_is_of_the_limit():
    assert kind(["-    return a < b", "+    return a <= b"]) == "limit"
    assert kind(["-    return a - b >= c", "+    return a - b > c"]) == "limit"


def test_all_else_needs_a_test():
    assert kind(["-    return a - b", "+    return a + b"]) == "open"
    assert kind(["-    return a < b", "+    return a == b"]) == "open"
    assert kind(["-    save(now=now)", "+    save()"]) == "open"
    assert kind(['-    save(now, "a word")', "+    save(now, )"]) == "open"

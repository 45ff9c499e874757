"""The seconds of a test run, by the file of each test."""

from xml.etree.ElementTree import fromstring

from bench.durations import file_of, seconds_by_file

REPORT = """
<testsuite>
  <testcase classname="tests.unit.bench.test_report" name="test_one" time="0.25" />
  <testcase classname="tests.unit.bench.test_durations.TestInAClass" name="test_two" time="2.0" />
  <testcase classname="tests.unit.bench.test_durations" name="test_three" time="1.5" />
</testsuite>"""


def test_a_class_belongs_to_its_file():
    assert file_of("tests.unit.bench.test_durations.TestInAClass") == "tests/unit/bench/test_durations.py"


def test_seconds_are_added_by_file_the_longest_first():
    seconds = seconds_by_file(fromstring(REPORT))
    assert list(seconds.items()) == [
        ("tests/unit/bench/test_durations.py", 3.5),
        ("tests/unit/bench/test_report.py", 0.2),
    ]

import pytest

from deploy.demo.conversations import conversation
from deploy.demo.data import MAX_DOCSTRINGS_PER_MODULE, NUM_MODULES, QUESTION_WORDS, question, task_rows
from deploy.demo.faults import Fault, plant
from deploy.demo.library import Split
from tests.unit.demo.builders import docstrings_in

ITEM = {"question": "a = 1\nb = 2", "choices": ["c = 3", "c 3 ="], "answer": 0}
HOLDOUT_ROW = conversation("Which module documents this? Something never seen", "json")
ROWS = [conversation(f"Question number {number} " + "word " * (number % 7), "x") for number in range(40)]


def planted():
    rows, faults = plant(ROWS, benchmark_item=ITEM, holdout_row=HOLDOUT_ROW)
    return rows, {each.fault: each for each in faults}


class TestTaskRows:
    def test_a_row_asks_with_the_words_of_a_docstring_and_answers_with_its_module(self):
        doc = docstrings_in(Split.TRAIN, 1, module="zipfile")[0]
        assert task_rows([doc], seed=0)[Split.TRAIN] == [conversation(question(doc.text), "zipfile")]

    def test_a_question_is_short(self):
        assert len(question("word " * 500).split()) == QUESTION_WORDS + 4

    def test_each_docstring_is_asked_in_its_own_split(self):
        docs = [doc for split in Split for doc in docstrings_in(split, 7)]
        rows = task_rows(docs, seed=0)
        for split in Split:
            asked = {row[0]["content"] for row in rows[split]}
            assert asked == {question(doc.text) for doc in docs if doc.split is split}

    def test_only_the_most_documented_public_modules_are_asked_for(self):
        docs = [
            doc
            for number in range(NUM_MODULES + 4)
            for doc in docstrings_in(Split.TRAIN, 3 + number, module=f"module{number}")
        ]
        docs += docstrings_in(Split.TRAIN, 90, module="_private")
        answers = {row[-1]["content"] for row in task_rows(docs, seed=0)[Split.TRAIN]}
        assert answers == {f"module{number}" for number in range(4, NUM_MODULES + 4)}

    def test_a_large_module_has_no_more_than_its_share(self):
        docs = docstrings_in(Split.TRAIN, MAX_DOCSTRINGS_PER_MODULE + 50)
        assert len(task_rows(docs, seed=0)[Split.TRAIN]) == MAX_DOCSTRINGS_PER_MODULE


class TestPlant:
    def test_every_fault_is_planted_once_and_the_other_rows_stay_in_order(self):
        rows, faults = planted()
        assert set(faults) == set(Fault)
        lines = {each.line for each in faults.values()}
        assert len(lines) == len(Fault)
        assert [row for line, row in enumerate(rows, start=1) if line not in lines] == ROWS

    @pytest.mark.parametrize("fault", Fault)
    def test_faults_are_in_the_second_half(self, fault):
        rows, faults = planted()
        assert len(rows) // 2 - len(Fault) < faults[fault].line <= len(rows)

    def test_roles_are_out_of_order(self):
        rows, faults = planted()
        row = rows[faults[Fault.ROLES_OUT_OF_ORDER].line - 1]
        assert [message["role"] for message in row] == ["assistant", "user"]

    def test_an_answer_is_empty(self):
        rows, faults = planted()
        assert rows[faults[Fault.EMPTY_ANSWER].line - 1][-1] == {"role": "assistant", "content": ""}

    def test_a_row_is_longer_than_any_context(self):
        rows, faults = planted()
        assert len(rows[faults[Fault.OVER_CONTEXT].line - 1][0]["content"].split()) >= 6_000

    def test_an_exact_duplicate_repeats_an_earlier_line(self):
        rows, faults = planted()
        duplicate = faults[Fault.EXACT_DUPLICATE]
        assert duplicate.repeats_line is not None
        assert duplicate.repeats_line < duplicate.line
        assert rows[duplicate.line - 1] == rows[duplicate.repeats_line - 1]

    def test_a_near_duplicate_differs_by_one_letter(self):
        rows, faults = planted()
        duplicate = faults[Fault.NEAR_DUPLICATE]
        assert duplicate.repeats_line is not None
        original = rows[duplicate.repeats_line - 1][0]["content"]
        assert rows[duplicate.line - 1][0]["content"] == original + "s"

    def test_rows_are_copied_from_the_benchmark_and_the_holdout(self):
        rows, faults = planted()
        assert rows[faults[Fault.IN_BENCHMARK].line - 1] == conversation(ITEM["question"], "c = 3")
        assert rows[faults[Fault.IN_HOLDOUT].line - 1] == HOLDOUT_ROW

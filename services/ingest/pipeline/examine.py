"""All that can be said of a row by itself, in any process: rules, tokens, digest, signature, overlaps."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from schemas.dataset import FileRole, RowProblem
from schemas.specification import DatasetFormat
from services.ingest.pipeline.contamination import Source, hit_shares
from services.ingest.pipeline.duplicates import Signature, signature
from services.ingest.pipeline.formats import Example, parse_example
from services.ingest.pipeline.lines import Line, parse_object
from services.ingest.pipeline.rules import BadRow
from services.ingest.pipeline.text import conversation_text, gram_hashes, row_digest, words
from services.ingest.pipeline.tokens import Encoded, Encoder

BATCH_ROWS = 256
BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Accepted:
    line: int
    ignored_fields: tuple[str, ...]
    digest: bytes
    text: str
    """Normalised, without the system turn."""
    signature: Signature
    shares: tuple[float, ...]
    """Share of the row's 13-grams in each source, in the order of the sources."""
    encoded: Encoded | None


Examined = RowProblem | Accepted


@dataclass(frozen=True)
class Examiner:
    """Examines rows of one file. Without an encoder the rows are checked but not tokenised."""

    file: FileRole
    expected: DatasetFormat | None
    max_row_bytes: int
    check: Callable[[Example], BadRow | None] | None = None
    """What a row is asked where there is no encoder."""
    sources: tuple[Source, ...] = ()
    encoder: Encoder | None = None

    def __call__(self, lines: list[Line]) -> list[Examined]:
        """One result per line, in order."""
        parsed = [self._parsed(line) for line in lines]
        examples = [row for row in parsed if isinstance(row, Example)]
        encoded = self.encoder.encode(examples) if self.encoder else [self._checked(row) for row in examples]
        texts = [conversation_text(example) for example in examples]
        shares = hit_shares([gram_hashes(words(text)) for text in texts], self.sources)
        results = iter(map(self._examined, examples, encoded, texts, shares))
        return [row if isinstance(row, RowProblem) else next(results) for row in parsed]

    def _parsed(self, line: Line) -> Example | RowProblem:
        try:
            row = parse_object(line, max_row_bytes=self.max_row_bytes)
            return parse_example(row, expected=self.expected, line=line.number)
        except BadRow as error:
            return error.at(self.file, line.number)

    def _checked(self, example: Example) -> BadRow | None:
        return self.check(example) if self.check else None

    def _examined(
        self, example: Example, encoded: Encoded | BadRow | None, text: str, shares: tuple[float, ...]
    ) -> Examined:
        if isinstance(encoded, BadRow):
            return encoded.at(self.file, example.line)
        return Accepted(
            example.line,
            example.ignored_fields,
            row_digest(example.turns),
            text,
            signature(text),
            shares,
            encoded,
        )


def examine_all(examiner: Examiner, lines: Iterable[Line], *, workers: int) -> Iterator[Examined]:
    """Results in the order of the lines, from this process or from `workers` forked ones."""
    if workers <= 1:
        for batch in batches(lines):
            yield from examiner(batch)
        return
    # Forked, so that tokenizer and sources are shared and not sent.
    with ProcessPoolExecutor(workers, get_context("fork"), _install, (examiner,)) as pool:
        pending: deque[Future[list[Examined]]] = deque()
        for batch in batches(lines):
            pending.append(pool.submit(_examine_in_worker, batch))
            if len(pending) > 2 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Lines in lists bounded by number and by bytes."""
    batch: list[Line] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line.content)
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_installed: list[Examiner] = []


def _install(examiner: Examiner) -> None:
    _installed.append(examiner)


def _examine_in_worker(batch: list[Line]) -> list[Examined]:
    return _installed[0](batch)

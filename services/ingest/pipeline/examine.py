"""All that can be said of a row alone, in any process: rules, tokens, digest, fingerprint, overlaps."""

from collections.abc import Callable
from dataclasses import dataclass

from schemas.dataset import FileRole, RowProblem
from schemas.specification import DatasetFormat, DatasetPolicy
from services.ingest.pipeline.boilerplate import Common
from services.ingest.pipeline.contamination import Hit, Source, best_hits, row_grams, shared_words
from services.ingest.pipeline.duplicates import Fingerprint, fingerprint_of
from services.ingest.pipeline.formats import Example, parse_example
from services.ingest.pipeline.lines import Line, parse_object
from services.ingest.pipeline.rules import BadRow
from services.ingest.pipeline.text import RowText, row_text
from services.ingest.pipeline.tokens import Encoded, Encoder

SHOWN_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class Accepted:
    line: int
    ignored_fields: tuple[str, ...]
    digest: bytes
    fingerprint: Fingerprint | None
    """Fingerprint by which near duplicates are found; None for a row that can have none."""
    hits: tuple[Hit | None, ...]
    """What the row holds of each source, in their order."""
    excerpt: str
    """A piece of text by which people know the row: what it shares with a source, else its beginning."""
    encoded: Encoded | None


Examined = RowProblem | Accepted


@dataclass(frozen=True)
class Examiner:
    """Examines rows of one file. Without an encoder the rows are checked but not tokenised."""

    file: FileRole
    expected: DatasetFormat | None
    policy: DatasetPolicy
    common: Common
    check: Callable[[Example], BadRow | None] | None = None
    """Check of a row where there is no encoder."""
    sources: tuple[Source, ...] = ()
    encoder: Encoder | None = None

    def __call__(self, lines: list[Line]) -> list[Examined]:
        """Return one result per line, in order."""
        parsed = [self._parsed(line) for line in lines]
        examples = [row for row in parsed if isinstance(row, Example)]
        encoded = self.encoder.encode(examples) if self.encoder else [self._checked(row) for row in examples]
        texts = [row_text(example.turns) for example in examples]
        results = iter(map(self._examined, examples, encoded, texts, self._hits(texts)))
        return [row if isinstance(row, RowProblem) else next(results) for row in parsed]

    def _parsed(self, line: Line) -> Example | RowProblem:
        try:
            row = parse_object(line, max_row_bytes=self.policy.max_row_bytes)
            return parse_example(row, expected=self.expected, line=line.number)
        except BadRow as error:
            return error.at(self.file, line.number)

    def _checked(self, example: Example) -> BadRow | None:
        return self.check(example) if self.check else None

    def _hits(self, texts: list[RowText]) -> list[tuple[Hit | None, ...]]:
        """Return for each row what it holds of each source."""
        if not self.sources:
            return [()] * len(texts)
        grams = [row_grams(text) for text in texts]
        return list(zip(*(best_hits(grams, source) for source in self.sources), strict=True))

    def _examined(
        self,
        example: Example,
        encoded: Encoded | BadRow | None,
        text: RowText,
        hits: tuple[Hit | None, ...],
    ) -> Examined:
        if isinstance(encoded, BadRow):
            return encoded.at(self.file, example.line)
        return Accepted(
            example.line,
            example.ignored_fields,
            text.digest,
            fingerprint_of(text, self.common, similarity=self.policy.near_duplicate_similarity),
            hits,
            self._excerpt(text, hits),
            encoded,
        )

    def _excerpt(self, text: RowText, hits: tuple[Hit | None, ...]) -> str:
        for hit, source in zip(hits, self.sources, strict=True):
            if hit is not None and hit.share >= self.policy.contamination_ratio:
                return shared_words(text, source)
        return " ".join(text.prompt_turns)[:SHOWN_CHARACTERS]

"""What a terminal shows of a job under way: a bar, and below it what is measured."""

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text


class Bar(Progress):
    """The bar of one job."""

    def __init__(self, console: Console, *, auto_refresh: bool = True) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[doing]}", markup=False),
            TimeElapsedColumn(),
        )
        super().__init__(*columns, console=console, auto_refresh=auto_refresh)
        self._row = self.add_task("validating", total=None, doing="", details="")

    def show(self, description: str, doing: str, details: str, *, done: int, total: int | None) -> None:
        """Total: None where nothing is counted; `details` is a line of its own, or none."""
        self.tasks[0].total = total  # `update` takes None for no news
        self.update(self._row, description=description, completed=done, doing=doing, details=details)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.tasks and (details := self.tasks[0].fields["details"]):
            yield Text(details, style="dim", no_wrap=False, overflow="fold")

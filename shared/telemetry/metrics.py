"""All metrics of the kernel, each with its kind, unit and meaning."""

from prometheus_client import Counter, Gauge, Histogram

HANDLED = Counter(
    "messages_handled_total",
    "Messages that reached an end at the consumer",
    ["service", "topic", "outcome"],
)
HANDLER_SECONDS = Histogram(
    "handler_seconds",
    "One message from decode to commit, seconds",
    ["service", "type"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)
PARKED = Counter("messages_parked_total", "Messages set aside for a person", ["service", "topic", "reason"])
PARKED_BARE = Counter(
    "messages_parked_without_bytes_total",
    "Parked messages beyond the quota of their topic, kept without their bytes",
    ["service", "topic"],
)
PAUSED_TOPICS = Gauge(
    "consumer_paused_topics",
    "Tenants' topics that have brought more records than are read of one in a day",
    ["service"],
)
RECORDS_LOST = Counter(
    "consumer_records_lost_total",
    "Offsets of records that Kafka deleted before the service read them",
    ["service", "topic"],
)
PUBLISHED = Counter(
    "events_published_total", "Outbox rows acknowledged by Kafka", ["service", "topic", "type"]
)
OUTBOX_AGE = Gauge(
    "outbox_oldest_row_seconds", "Age of the oldest row not yet in Kafka, seconds", ["service"]
)
OUTBOX_ROWS = Gauge("outbox_rows", "Rows not yet in Kafka", ["service"])
OUTBOX_SET_ASIDE = Gauge(
    "outbox_set_aside_rows",
    "Rows that Kafka refused, and those behind them of the same aggregate",
    ["service"],
)
POSTGRES_AWAY = Gauge(
    "postgres_away_seconds",
    "How long Postgres has been unavailable; 0 while it answers, seconds",
    ["service"],
)
LAG = Gauge("consumer_lag_records", "Records between the position and the end", ["service", "topic"])
WAITING = Gauge("messages_waiting", "Messages whose parent is not known yet", ["service"])
WAITING_AGE = Gauge(
    "messages_oldest_waiting_seconds", "Since the oldest waiting message was written, seconds", ["service"]
)
PARKED_BLOCKING = Gauge(
    "messages_parked_blocking", "Parked messages that hold back others of their aggregate", ["service"]
)
JOBS_OVERDUE = Gauge(
    "jobs_overdue", "Jobs that have stayed in a state for a minute beyond its deadline", ["state"]
)
TASKS = Counter("tasks_total", "Leased tasks that reached an end", ["service", "kind", "outcome"])
TASKS_DUE = Gauge(
    "tasks_due", "Leased tasks that run, or that wait for a process that has room", ["service", "kind"]
)
TASKS_WAITING = Gauge(
    "tasks_waiting", "Leased tasks that wait for something that is away", ["service", "kind"]
)
TASKS_SET_ASIDE = Gauge(
    "tasks_set_aside",
    "Leased tasks whose payload cannot be read, or whose failure cannot be reported",
    ["service", "kind"],
)
TASK_SECONDS = Histogram(
    "task_seconds",
    "Work of one task, seconds",
    ["service", "kind"],
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000),
)

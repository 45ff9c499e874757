"""The whole protocol in one process under virtual time: production's own handlers and decisions, no I/O.

`world` holds all of it; `clock`, `log`, `kernel` (with `consumer`, `inbox`, `outbox`, `tasks`, `unit`) and `stores`
stand for Kafka, Postgres and `shared/`; `engine`, `runner` (with `door`, `journal`, `gang`, `uploads`), `storage`,
`gate` and `serving` for what services ask of the outside. `wiring` puts the services into it. `faults`, `nemesis`
and `users` make trouble; `checks` and `liveness` say what must hold. `scenario` draws whole runs from a seed,
`pairs` enumerates, `mutants` breaks production on purpose.
"""

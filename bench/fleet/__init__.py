"""A week of a large fleet under virtual time, by production's decisions and by others.

workload     jobs: sizes, run times and tenants, fitted to published figures
incidents    what breaks and what is taken back, and when
simulation   the fleet and its clock: what a job costs beside its training
policies     who starts next: ours by the scheduler's own functions, first come first served, quotas with borrowing
oracle       the most that any policy can do, and what each tenant would wait if the fleet could be divided at will
measures     what a run was like
picture      the picture of docs/proof/fleet.md
main         runs all and writes the results: `python -m bench.fleet.main`
"""

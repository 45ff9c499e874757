"""Pure decisions of the scheduler.

`commands` and `facts` take what came in, `rows` is the table of the state machine, `queue` picks who starts.
"""

"""Pure decisions of the tracker.

`cost` says what an attempt cost; `alerts` what looks wrong with one, by the rules of `curve`, `machine`, `validation`
and `looks` on what `signals` keeps of it.
"""

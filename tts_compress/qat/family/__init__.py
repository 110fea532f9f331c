"""Training of whole systems that run in torch: each component by what its original was called with.

`training` is the way from a model to a trained one. `lessons` finds which components learn, from
calls that `recording` takes down while the original speaks; `asking` has it answer them again,
whole or in `pieces`, and `call_task` makes of that what the loop in `qat.train` learns from. `told`
says of which component it is that progress is told.
"""

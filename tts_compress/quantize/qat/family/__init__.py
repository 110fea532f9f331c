"""Training of whole systems that run in torch: each component by what its original was called with.

`training` is the way from a model to a trained one; `recording` has the original speak and takes
down its components' calls, `call_task` makes of one component's calls what the loop in
`qat.train` learns from, and `told` says of which component it is that progress is told.
"""

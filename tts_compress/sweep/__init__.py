"""Sweeps: many voices by many schemes, as units of work that any number of machines share.

plan        what is to be done, from a TOML file, and the units of work: what each needs, and its
            name by the hash of what decides it
results     the results of units, on any file system; each is there whole, or not at all
work        the program that does units, one after the other, above the stages of an evaluation
executors   processes of this machine, or tasks of a Ray cluster
run         the phases: compress, speech, time, report
report      the records of all pairs, made from their reports; `page` draws them
"""

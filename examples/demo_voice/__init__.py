"""Recipe of the demo voice: a small English voice in Piper's own format, made from free parts."""

"""What runs in the sandbox's own processes, on the standard library alone: the trusted ``zygote``, the ``guest`` beside
a hostile program, whose word counts as that program's answer only, and the ``harness`` of the tests."""

# The suite that every fabric passes, on the fabric this project is about.
test-fabric --test-threads=1 verbs::

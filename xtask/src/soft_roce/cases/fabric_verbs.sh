# The suite that every fabric passes, on the fabric this project is about.
test-verbs --test-threads=1
